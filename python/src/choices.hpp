// SPDX-License-Identifier: Apache-2.0
// Policies, strategies and observers that are Python's own callables and objects, and the list of observers that a
// search is given.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <comp/comp.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::python {

namespace py = pybind11;

/// A policy that is a Python callable of an operator.
struct called_policy {  // models comp::OperatorPolicy
  py::function classifies;

  decision classify(const op_info& op) const {
    const py::object answer = classifies(op);
    require<settings_error>(
        py::isinstance<decision>(answer),
        "the policy says {} for operator \"{}\" (a decision is wanted): return comp.allow(\"bf16\"), "
        "comp.deny(), comp.follow() or comp.fixed(\"fp32\")",
        std::string{py::repr(answer)}, op.name);
    return answer.cast<decision>();
  }
};

/// A strategy that is a Python object with ask(n), which gives plans as strings, and tell(trial). If it has
/// start(space), that is called first, and what it returns asks and tells.
struct called_strategy {  // models comp::SearchStrategy
  py::object given;

  class run {
   public:
    explicit run(py::object started) : started_{std::move(started)} {}
    std::vector<plan> ask(std::size_t at_most) {
      std::vector<plan> plans;
      for (const py::handle each : started_.attr("ask")(at_most)) plans.push_back(parse_plan(each.cast<std::string>()));
      return plans;
    }
    void tell(const trial& result) { started_.attr("tell")(result); }

   private:
    py::object started_;
  };
  run start(search_space over) const {
    return run{py::hasattr(given, "start") ? py::object{given.attr("start")(std::move(over))} : given};
  }
};

/// An observer that is a Python object with any of search_started(), trial_started(trial), trial_done(trial),
/// stop_requested(), warned(sentence) and search_done(outcome). Without an object it only lets Ctrl-C through.
class called_observer {
 public:
  explicit called_observer(py::object observer) : observer_{std::move(observer)} {}

  void search_started(const search_info& /*info*/) { (void)tell("search_started"); }
  void trial_started(const trial& t) { (void)tell("trial_started", t); }
  bool trial_done(const trial& t) { return truth(tell("trial_done", t)); }
  void warned(const std::string& sentence) { (void)tell("warned", sentence); }
  void search_done(const outcome& found) { (void)tell("search_done", found); }
  bool stop_requested() {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set{};
    return truth(tell("stop_requested"));
  }

 private:
  template <class... A>
  py::object tell(const char* member, const A&... what) {
    return py::hasattr(observer_, member) ? observer_.attr(member)(what...) : py::none();
  }
  static bool truth(const py::object& answer) { return py::isinstance<py::bool_>(answer) && answer.cast<bool>(); }
  py::object observer_;
};

/// A training's progress, and whether its watcher has asked to stop.
struct watched_training {
  py::object watcher;  // (progress, call) -> bool: whether to stop; carry_out(text) -> text: what each rank does
  /// Has each rank's watcher carry out a text. Returns: what each answers.
  std::function<std::vector<std::string>(const std::string&)> call = {};
  std::optional<training_progress> last = {};
  bool stop = false;
};
class training_watch {
 public:
  explicit training_watch(watched_training& watched) : watched_{watched} {}

  void training_progressed(const training_progress& now) {
    watched_.last = now;
    try {
      watched_.stop = watched_.watcher(now, py::cpp_function{watched_.call}).cast<bool>();
    } catch (const py::error_already_set& e) {
      throw_as_cpp(e);
      throw;
    }
  }
  bool stop_requested() { return watched_.stop; }

 private:
  /// Other ranks are told of an exception of comp's by its type.
  static void throw_as_cpp(const py::error_already_set& e) {
    const py::object own = py::module_::import("comp._comp");
    if (e.matches(own.attr("FileError"))) throw file_error{std::string{py::str(e.value())}};
    if (e.matches(own.attr("RankError"))) throw rank_error{std::string{py::str(e.value())}};
  }

  watched_training& watched_;
};

/// Observers of any types, told in the order in which they were added.
class observers : public observer_group<observers> {
  template <class O>
  struct holder {
    O observer;
  };
  template <class O>
  struct owning_list final : private holder<O>, public observer_list<O> {
    template <class... A>
    explicit owning_list(A&&... how) : holder<O>{O(std::forward<A>(how)...)}, observer_list<O>{holder<O>::observer} {}
  };

 public:
  template <class O, class... A>
  void add(A&&... how) {
    each_.push_back(std::make_unique<owning_list<O>>(std::forward<A>(how)...));
  }
  template <class F>
  void visit(F&& call) {
    for (const auto& o : each_) call(*o);
  }

 private:
  std::vector<std::unique_ptr<any_observer>> each_;
};

}  // namespace comp::python
