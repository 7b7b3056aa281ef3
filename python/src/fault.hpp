// SPDX-License-Identifier: Apache-2.0
// Brings an exception of Python's through a search, which would take it for a plan's failure.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <comp/core/error.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <exception>
#include <string>
#include <utility>

namespace comp::python {

namespace py = pybind11;

/// A Python exception of the user's step. It is a plan's failure, or comes out of the search if FP32 raises it, too.
struct step_error : error {
  step_error(const std::string& words, std::exception_ptr what) : error{words}, raised{std::move(what)} {}
  std::exception_ptr raised;
};

/// An exception of Python's on its way through the search.
class fault {
 public:
  /// Runs `work`. An exception that Python raises in it is kept, and the search is asked to end.
  template <class F>
  auto kept(F&& work) {
    if (raised_) throw interrupted{said_};
    try {
      return work();
    } catch (const py::error_already_set& e) {
      raised_ = std::current_exception();
      said_ =
          fmt::format("{} (an exception was raised in Python, and comes out of the search): see there", words_of(e));
      throw interrupted{said_};
    }
  }
  /// Runs `work` to its end. If Ctrl-C interrupts it, that is kept, and `work` begins anew.
  template <class F>
  void whole(F&& work) {
    for (;;) {
      try {
        return work();
      } catch (const py::error_already_set& e) {
        if (!e.matches(PyExc_KeyboardInterrupt)) throw;
        if (!raised_) raised_ = std::current_exception();
      }
    }
  }
  /// Runs `work`. Throws: the exception that was kept, as explain_by() leaves it; else the user's own in place of a
  /// `step_error`; else what `work` throws.
  template <class F>
  auto out_of(F&& work) {
    raised_ = nullptr;
    try {
      auto result = libtorch::translated(work);
      if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
      return result;
    } catch (const step_error& e) {
      std::rethrow_exception(raised_ ? std::exchange(raised_, nullptr) : e.raised);
    } catch (...) {
      if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
      throw;
    }
  }

  /// Another rank has failed or is gone. A step that waits for it then ends with a RuntimeError of torch's, which says
  /// nothing of the rank: the rank_error takes its place, and has its words.
  void explain_by(const rank_error& rank) {
    if (!raised_) return;
    try {
      std::rethrow_exception(raised_);
    } catch (const py::error_already_set& e) {
      const bool waited =
          e.matches(PyExc_RuntimeError) && !e.matches(py::module_::import("comp._comp").attr("RankError"));
      if (!waited) return;
      raised_ =
          std::make_exception_ptr(rank_error{fmt::format("{}; the step here ended with {}", rank.what(), words_of(e))});
    }
  }

 private:
  static std::string words_of(const py::error_already_set& e) {
    return fmt::format("{}: {}", std::string{py::str(e.type().attr("__name__"))},
                       libtorch::detail::first_line(std::string{py::str(e.value())}));
  }

  std::exception_ptr raised_;
  std::string said_;  // of it, for other ranks
};

}  // namespace comp::python
