// SPDX-License-Identifier: Apache-2.0
// How a search talks to whoever watches or keeps it. An observer is any class with some of the members below; what it
// does not have costs nothing, and a member of the right name with a wrong signature is refused in one sentence. Not
// here: the observers themselves (observe/).
#pragma once

#include <comp/core/training_progress.hpp>
#include <comp/core/trial.hpp>
#include <comp/core/unmet.hpp>
#include <comp/search/outcome.hpp>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

COMP_DETAIL_NAMES(search_started)
COMP_DETAIL_NAMES(trial_started)
COMP_DETAIL_NAMES(batch_done)
COMP_DETAIL_NAMES(trial_done)
COMP_DETAIL_NAMES(recall)
COMP_DETAIL_NAMES(stop_requested)
COMP_DETAIL_NAMES(search_done)
COMP_DETAIL_NAMES(warned)
COMP_DETAIL_NAMES(training_progressed)

namespace comp {

namespace detail {
template <class R>
inline constexpr bool is_void_or_bool = std::is_void_v<R> || std::is_same_v<R, bool>;
template <class R>
concept void_or_bool = is_void_or_bool<R>;  // one condition: two alternatives would be explained on ten lines
template <class O>
inline constexpr bool is_told_anything = names_search_started<O> || names_recall<O> || names_trial_started<O> ||
                                         names_batch_done<O> || names_trial_done<O> || names_stop_requested<O> ||
                                         names_warned<O> || names_search_done<O> || names_training_progressed<O>;
}  // namespace detail

/// What is known when a search (or a training after it) starts.
struct search_info {
  const op_graph& graph;
  const comp::hardware& hardware;
  std::string signature;            // everything that makes recorded trials usable again, as one line of text
  double tolerance;                 // of the loss, relative
  std::size_t epochs_at_most = 0;   // epochs that will be run, where the strategies' spaces tell; 0: not known
  const outcome* so_far = nullptr;  // what the search knows by now, as long as it runs; none where there is no search
};

// A sentence stays on one line:
// clang-format off
/// True for an Observer. For another class it does not compile, and the errors say, a sentence each, what is missing.
template <class O, bool Aloud = true>
constexpr bool expect_observer() {
  COMP_NEEDS("an observer needs a member: search_started, trial_started, batch_done, trial_done, warned, search_done, ...",
             detail::is_told_anything<O>);
  COMP_NEEDS("an observer's search_started needs the form: void search_started(const comp::search_info&)",
             !detail::names_search_started<O> || requires(O& o, const search_info& info) { { o.search_started(info) } -> std::same_as<void>; });
  COMP_NEEDS("an observer's recall needs the form: std::optional<comp::trial> recall(const comp::trial&)",
             !detail::names_recall<O> || requires(O& o, const trial& t) { { o.recall(t) } -> std::same_as<std::optional<trial>>; });
  COMP_NEEDS("an observer's trial_started needs the form: void trial_started(const comp::trial&)",
             !detail::names_trial_started<O> || requires(O& o, const trial& t) { { o.trial_started(t) } -> std::same_as<void>; });
  COMP_NEEDS("an observer's batch_done needs the form: void batch_done(const comp::trial&, const comp::sample&)",
             !detail::names_batch_done<O> || requires(O& o, const trial& t, const sample& s) { { o.batch_done(t, s) } -> std::same_as<void>; });
  COMP_NEEDS("an observer's trial_done needs the form: void or bool trial_done(const comp::trial&)",
             !detail::names_trial_done<O> || requires(O& o, const trial& t) { { o.trial_done(t) } -> detail::void_or_bool; });
  COMP_NEEDS("an observer's stop_requested needs the form: bool stop_requested()",
             !detail::names_stop_requested<O> || requires(O& o) { { o.stop_requested() } -> std::same_as<bool>; });
  COMP_NEEDS("an observer's warned needs the form: void warned(const std::string&)",
             !detail::names_warned<O> || requires(O& o, const std::string& sentence) { { o.warned(sentence) } -> std::same_as<void>; });
  COMP_NEEDS("an observer's search_done needs the form: void search_done(const comp::outcome&)",
             !detail::names_search_done<O> || requires(O& o, const outcome& result) { { o.search_done(result) } -> std::same_as<void>; });
  COMP_NEEDS("an observer's training_progressed needs the form: void training_progressed(const comp::training_progress&)",
             !detail::names_training_progressed<O> || requires(O& o, const training_progress& p) { { o.training_progressed(p) } -> std::same_as<void>; });
  return true;
}

/// Called in this order: search_started; for each run recall, trial_started, batch_done after each of its batches,
/// trial_done; search_done. Members, all optional:
///   void search_started(const search_info&)
///   std::optional<trial> recall(const trial&)      a recorded result for this stage, plan and repeat: the run is then not made
///   void trial_started(const trial&)
///   void batch_done(const trial&, const sample&)   the epoch's sample so far
///   void or bool trial_done(const trial&)          true: stop the search
///   bool stop_requested()                          asked after each batch and run; true: stop, comp::interrupted is thrown
///   void warned(const std::string& sentence)       something is wrong, as soon as it is known; outcome.warnings has it too
///   void search_done(const outcome&)
///   void training_progressed(const training_progress&)   of a training after a search: before its first epoch and after
///                                                        each; the trainer's state now is what goes on from there
template <class O>
concept Observer = expect_observer<O, false>() || unmet<"no Observer: static_assert(comp::expect_observer<T>()) says why">();
// clang-format on

/// All observers of a search as one.
class any_observer {
 public:
  virtual ~any_observer() = default;
  virtual void search_started(const search_info& info) = 0;
  virtual std::optional<trial> recall(const trial& wanted) = 0;
  virtual void trial_started(const trial& t) = 0;
  virtual void batch_done(const trial& t, const sample& so_far) = 0;
  /// Returns: true when an observer wants the search to stop.
  virtual bool trial_done(const trial& t) = 0;
  virtual bool stop_requested() = 0;
  virtual void warned(const std::string& sentence) = 0;
  virtual void search_done(const outcome& result) = 0;
  virtual void training_progressed(const training_progress& now) = 0;
};

/// Calls what each observer has, in their order. Those: what `Group::visit(call)` calls `call` with.
template <class Group>
class observer_group : public any_observer {
 public:
  void search_started(const search_info& info) override {
    each([&](auto& o) -> decltype(o.search_started(info)) { return o.search_started(info); });
  }
  std::optional<trial> recall(const trial& wanted) override {
    std::optional<trial> recorded;
    each([&](auto& o) -> decltype(o.recall(wanted), void()) {
      if (!recorded) recorded = o.recall(wanted);
    });
    return recorded;
  }
  void trial_started(const trial& t) override {
    each([&](auto& o) -> decltype(o.trial_started(t)) { return o.trial_started(t); });
  }
  void batch_done(const trial& t, const sample& so_far) override {
    each([&](auto& o) -> decltype(o.batch_done(t, so_far)) { return o.batch_done(t, so_far); });
  }
  bool trial_done(const trial& t) override {
    return each([&](auto& o) -> decltype(o.trial_done(t)) { return o.trial_done(t); });
  }
  bool stop_requested() override {
    return each([&](auto& o) -> decltype(o.stop_requested()) { return o.stop_requested(); });
  }
  void warned(const std::string& sentence) override {
    each([&](auto& o) -> decltype(o.warned(sentence)) { return o.warned(sentence); });
  }
  void search_done(const outcome& result) override {
    each([&](auto& o) -> decltype(o.search_done(result)) { return o.search_done(result); });
  }
  void training_progressed(const training_progress& now) override {
    each([&](auto& o) -> decltype(o.training_progressed(now)) { return o.training_progressed(now); });
  }

 private:
  // Calls `call` with each observer that it can be called with. Returns: whether one of them answered true.
  template <class F>
  bool each(F call) {
    bool yes = false;
    static_cast<Group&>(*this).visit([&](auto& o) { yes = answer(call, o) || yes; });
    return yes;
  }
  template <class F, class O>
  static bool answer(F& call, O& o) {
    if constexpr (!std::is_invocable_v<F&, O&>) {
      return false;
    } else if constexpr (std::is_void_v<std::invoke_result_t<F&, O&>>) {
      call(o);
      return false;
    } else {
      return call(o);
    }
  }
};

/// Holds references: lives no longer than the call that made it.
template <Observer... Observers>
class observer_list : public observer_group<observer_list<Observers...>> {
 public:
  explicit observer_list(Observers&... each) : each_{each...} {}

  template <class F>
  void visit(F&& call) {
    std::apply([&](auto&... o) { (call(o), ...); }, each_);
  }

 private:
  std::tuple<Observers&...> each_;
};

}  // namespace comp
