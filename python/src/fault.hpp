// SPDX-License-Identifier: Apache-2.0
// Brings an exception of Python's through a search, which would take it for a plan's failure.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <comp/core/error.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <exception>
#include <utility>

namespace comp::python {

namespace py = pybind11;

/// An exception of Python's on its way through the search.
class fault {
 public:
  /// Runs `work`. An exception that Python raises in it is kept, and the search is asked to end.
  template <class F>
  auto kept(F&& work) {
    if (raised_) throw interrupted{"an exception was raised in Python (it comes out of the search): see there"};
    try {
      return work();
    } catch (const py::error_already_set&) {
      raised_ = std::current_exception();
      throw interrupted{"an exception was raised in Python (it comes out of the search): see there"};
    }
  }
  /// Runs `work` to its end. Where Ctrl-C comes in between, that is kept, and `work` begins anew.
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
  /// Runs `work`. Throws: the exception that was kept, unchanged, else what `work` throws.
  template <class F>
  auto out_of(F&& work) {
    raised_ = nullptr;
    try {
      auto made = libtorch::translated(work);
      if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
      return made;
    } catch (...) {
      if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
      throw;
    }
  }

 private:
  std::exception_ptr raised_;
};

}  // namespace comp::python
