// SPDX-License-Identifier: Apache-2.0
// Policies, strategies and observers that are chosen while Python runs, its own callables and objects among them: one
// type for each concept, so that the search is compiled once.
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

class any_policy {  // models comp::OperatorPolicy
 public:
  any_policy() : any_policy{policy::pytorch{}} {}
  template <OperatorPolicy P>
  requires(!std::same_as<P, any_policy>) any_policy(P chosen)  // NOLINT: implicit on purpose
      : classify_{[chosen](const op_info& op) { return chosen.classify(op); }}, on_{[chosen](const hardware& machine) {
          return any_policy{on_machine(chosen, machine)};
        }} {}

  decision classify(const op_info& op) const { return classify_(op); }
  any_policy on(const hardware& machine) const { return on_(machine); }

 private:
  std::function<decision(const op_info&)> classify_;
  std::function<any_policy(const hardware&)> on_;
};

/// A Python callable of an operator.
struct called_policy {  // models comp::OperatorPolicy
  py::function classifies;

  decision classify(const op_info& op) const {
    const py::object said = classifies(op);
    require<settings_error>(
        py::isinstance<decision>(said),
        "the policy says {} for operator \"{}\" (a decision is wanted): return comp.allow(\"bf16\"), "
        "comp.deny(), comp.follow() or comp.fixed(\"fp32\")",
        std::string{py::repr(said)}, op.name);
    return said.cast<decision>();
  }
};

class any_strategy {  // models comp::SearchStrategy
  struct running {
    virtual ~running() = default;
    virtual std::vector<plan> ask(std::size_t at_most) = 0;
    virtual void tell(const trial& seen) = 0;
    virtual std::size_t at_most() const = 0;
  };
  template <class Run>
  struct running_of final : running {
    explicit running_of(Run made) : run{std::move(made)} {}
    std::vector<plan> ask(std::size_t at_most) override { return run.ask(at_most); }
    void tell(const trial& seen) override { run.tell(seen); }
    std::size_t at_most() const override {
      if constexpr (requires { run.at_most(); }) return static_cast<std::size_t>(run.at_most());
      return 0;
    }
    Run run;
  };

 public:
  class run {
   public:
    explicit run(std::unique_ptr<running> started) : started_{std::move(started)} {}
    std::vector<plan> ask(std::size_t at_most) { return started_->ask(at_most); }
    void tell(const trial& seen) { started_->tell(seen); }
    std::size_t at_most() const { return started_->at_most(); }

   private:
    std::unique_ptr<running> started_;
  };

  any_strategy() : any_strategy{strategy::guided{}} {}
  template <SearchStrategy S>
  requires(!std::same_as<S, any_strategy>) any_strategy(S chosen)  // NOLINT: implicit on purpose
      : start_{[chosen](search_space over) {
          auto made = chosen.start(std::move(over));
          return std::unique_ptr<running>{std::make_unique<running_of<decltype(made)>>(std::move(made))};
        }} {
    if constexpr (std::same_as<S, strategy::guided>) guided_ = chosen;
  }

  /// Settings of a guided search, where it is one: comp asks for them.
  const strategy::guided* guide() const { return guided_ ? &*guided_ : nullptr; }
  run start(search_space over) const { return run{start_(std::move(over))}; }

 private:
  std::function<std::unique_ptr<running>(search_space)> start_;
  std::optional<strategy::guided> guided_;
};

/// A Python object with ask(n), which gives plans as strings, and tell(trial); where it has start(space), that is
/// called first, and what it returns asks and tells.
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
    void tell(const trial& seen) { started_.attr("tell")(seen); }

   private:
    py::object started_;
  };
  run start(search_space over) const {
    return run{py::hasattr(given, "start") ? py::object{given.attr("start")(std::move(over))} : given};
  }
};

/// An object of Python's with any of search_started(), trial_started(trial), trial_done(trial), stop_requested(),
/// warned(sentence) and search_done(outcome). Without one it only lets Ctrl-C through.
class called_observer {
 public:
  explicit called_observer(py::object told) : told_{std::move(told)} {}

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
    return py::hasattr(told_, member) ? told_.attr(member)(what...) : py::none();
  }
  static bool truth(const py::object& said) { return py::isinstance<py::bool_>(said) && said.cast<bool>(); }
  py::object told_;
};

/// Observers of any types, told in the order in which they were added.
class observers {
  template <class O>
  struct kept {
    O observer;
  };
  template <class O>
  struct told_by final : private kept<O>, public observer_list<O> {
    template <class... A>
    explicit told_by(A&&... how) : kept<O>{O{std::forward<A>(how)...}}, observer_list<O>{kept<O>::observer} {}
  };

 public:
  template <class O, class... A>
  void add(A&&... how) {
    each_.push_back(std::make_unique<told_by<O>>(std::forward<A>(how)...));
  }

  void search_started(const search_info& info) {
    for (auto& o : each_) o->search_started(info);
  }
  std::optional<trial> recall(const trial& wanted) {
    for (auto& o : each_) {
      if (auto found = o->recall(wanted)) return found;
    }
    return {};
  }
  void trial_started(const trial& t) {
    for (auto& o : each_) o->trial_started(t);
  }
  void batch_done(const trial& t, const sample& so_far) {
    for (auto& o : each_) o->batch_done(t, so_far);
  }
  bool trial_done(const trial& t) {
    bool stop = false;
    for (auto& o : each_) stop = o->trial_done(t) || stop;
    return stop;
  }
  bool stop_requested() {
    bool stop = false;
    for (auto& o : each_) stop = o->stop_requested() || stop;
    return stop;
  }
  void warned(const std::string& sentence) {
    for (auto& o : each_) o->warned(sentence);
  }
  void search_done(const outcome& found) {
    for (auto& o : each_) o->search_done(found);
  }
  void training_progressed(const training_progress& now) {
    for (auto& o : each_) o->training_progressed(now);
  }

 private:
  std::vector<std::unique_ptr<any_observer>> each_;
};

}  // namespace comp::python
