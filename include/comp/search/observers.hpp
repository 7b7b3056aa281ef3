// SPDX-License-Identifier: Apache-2.0
// Tells observers what a search does, so that they can show it or record it. An observer is any class with some of the
// members below. What it lacks costs nothing; a member with the right name and a wrong signature is refused in one
// sentence.
#pragma once

#include <comp/core/training_progress.hpp>
#include <comp/core/trial.hpp>
#include <comp/core/unmet.hpp>
#include <comp/search/outcome.hpp>
#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

namespace comp {

/// What is known when a search (or a training after it) starts.
struct search_info {
  const op_graph& graph;
  const comp::hardware& hardware;
  std::string signature;            // everything that makes recorded trials usable again, as one line of text
  double tolerance;                 // settings.tolerance: a fraction of the loss
  std::size_t epochs_at_most = 0;   // the most epochs that will be run, if the strategies know; 0: not known
  const outcome* so_far = nullptr;  // what the search has found so far; nullptr if there is no search
  std::function<void(std::string)> warn = {};  // lets an observer add a warning to the search's; may be empty
};

namespace detail {
template <class R>
inline constexpr bool is_void_or_bool = std::is_void_v<R> || std::is_same_v<R, bool>;
template <class R>
concept void_or_bool = is_void_or_bool<R>;  // one concept, because a compiler explains two alternatives on ten lines
}  // namespace detail

}  // namespace comp

// clang-format off
COMP_DETAIL_CAPABILITY(search_started, is_told_of_start, requires(B& o, const search_info& info) { { o.search_started(info) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(recall, recalls, requires(B& o, const trial& t) { { o.recall(t) } -> std::same_as<std::optional<trial>>; })
COMP_DETAIL_CAPABILITY(trial_started, is_told_of_trial, requires(B& o, const trial& t) { { o.trial_started(t) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(batch_done, is_told_of_batch, requires(B& o, const trial& t, const sample& s) { { o.batch_done(t, s) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(trial_done, is_told_of_result, requires(B& o, const trial& t) { { o.trial_done(t) } -> void_or_bool; })
COMP_DETAIL_CAPABILITY(stop_requested, may_stop, requires(B& o) { { o.stop_requested() } -> std::same_as<bool>; })
COMP_DETAIL_CAPABILITY(warned, is_warned, requires(B& o, const std::string& sentence) { { o.warned(sentence) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(search_done, is_told_of_end, requires(B& o, const outcome& result) { { o.search_done(result) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(training_progressed, is_told_of_training, requires(B& o, const training_progress& p) { { o.training_progressed(p) } -> std::same_as<void>; })

// Members with the signature of an observer's member under a similar name. They would never be called, which their
// author would hardly notice.
#define COMP_DETAIL_TAKES(MEMBER, ...) \
  requires(B& o, const search_info& info, const trial& t, const sample& s, const std::string& sentence, const outcome& result, const training_progress& p) { o.MEMBER(__VA_ARGS__); }
COMP_DETAIL_MISNOMER(search_started, COMP_DETAIL_TAKES(search_begun, info) || COMP_DETAIL_TAKES(search_start, info) || COMP_DETAIL_TAKES(on_search_started, info))
COMP_DETAIL_MISNOMER(trial_started, COMP_DETAIL_TAKES(trial_begun, t) || COMP_DETAIL_TAKES(trial_start, t) || COMP_DETAIL_TAKES(on_trial_started, t))
COMP_DETAIL_MISNOMER(batch_done, COMP_DETAIL_TAKES(batch_finished, t, s) || COMP_DETAIL_TAKES(batch_ended, t, s) || COMP_DETAIL_TAKES(on_batch_done, t, s))
COMP_DETAIL_MISNOMER(trial_done, COMP_DETAIL_TAKES(trial_finished, t) || COMP_DETAIL_TAKES(trial_ended, t) || COMP_DETAIL_TAKES(on_trial_done, t))
COMP_DETAIL_MISNOMER(stop_requested, !names_trial_done<B> &&  // which may call it
  requires(B& o) { { o.should_stop() } -> std::same_as<bool>; })
COMP_DETAIL_MISNOMER(warned, COMP_DETAIL_TAKES(on_warned, sentence) || COMP_DETAIL_TAKES(on_warning, sentence))
COMP_DETAIL_MISNOMER(search_done, COMP_DETAIL_TAKES(search_finished, result) || COMP_DETAIL_TAKES(search_ended, result) || COMP_DETAIL_TAKES(on_search_done, result))
COMP_DETAIL_MISNOMER(training_progressed, COMP_DETAIL_TAKES(training_progress, p) || COMP_DETAIL_TAKES(epoch_done, p))
#undef COMP_DETAIL_TAKES

namespace comp::detail {
template <class O>
inline constexpr bool is_told_anything = names_search_started<O> || names_recall<O> || names_trial_started<O> ||
                                         names_batch_done<O> || names_trial_done<O> || names_stop_requested<O> ||
                                         names_warned<O> || names_search_done<O> || names_training_progressed<O>;
}  // namespace comp::detail

namespace comp {

// A sentence stays on one line:
/// Returns: true for an Observer. Any other class does not compile, and each error says in a sentence what is missing.
template <class O, bool Aloud = true>
constexpr bool expect_observer() {
  using namespace detail;
  static_assert(!Aloud || !misnames_search_started<O>, "an observer's search_begun, search_start or on_search_started is never called: name it search_started");
  static_assert(!Aloud || !misnames_trial_started<O>, "an observer's trial_begun, trial_start or on_trial_started is never called: name it trial_started");
  static_assert(!Aloud || !misnames_batch_done<O>, "an observer's batch_finished, batch_ended or on_batch_done is never called: name it batch_done");
  static_assert(!Aloud || !misnames_trial_done<O>, "an observer's trial_finished, trial_ended or on_trial_done is never called: name it trial_done");
  static_assert(!Aloud || !misnames_stop_requested<O>, "an observer's should_stop is never called: name it stop_requested");
  static_assert(!Aloud || !misnames_warned<O>, "an observer's on_warned or on_warning is never called: name it warned");
  static_assert(!Aloud || !misnames_search_done<O>, "an observer's search_finished, search_ended or on_search_done is never called: name it search_done");
  static_assert(!Aloud || !misnames_training_progressed<O>, "an observer's training_progress or epoch_done is never called: name it training_progressed");
  constexpr bool misnames = misnames_search_started<O> || misnames_trial_started<O> || misnames_batch_done<O> || misnames_trial_done<O> ||
                            misnames_stop_requested<O> || misnames_warned<O> || misnames_search_done<O> || misnames_training_progressed<O>;
  static_assert(!Aloud || misnames || is_told_anything<O>, "an observer needs a member: search_started, trial_started, batch_done, trial_done, warned, search_done, ...");
  static_assert(!Aloud || fits_search_started<O>, "an observer's search_started needs the form: void search_started(const comp::search_info&)");
  static_assert(!Aloud || fits_recall<O>, "an observer's recall needs the form: std::optional<comp::trial> recall(const comp::trial&)");
  static_assert(!Aloud || fits_trial_started<O>, "an observer's trial_started needs the form: void trial_started(const comp::trial&)");
  static_assert(!Aloud || fits_batch_done<O>, "an observer's batch_done needs the form: void batch_done(const comp::trial&, const comp::sample&)");
  static_assert(!Aloud || fits_trial_done<O>, "an observer's trial_done needs the form: void or bool trial_done(const comp::trial&)");
  static_assert(!Aloud || fits_stop_requested<O>, "an observer's stop_requested needs the form: bool stop_requested()");
  static_assert(!Aloud || fits_warned<O>, "an observer's warned needs the form: void warned(const std::string&)");
  static_assert(!Aloud || fits_search_done<O>, "an observer's search_done needs the form: void search_done(const comp::outcome&)");
  static_assert(!Aloud || fits_training_progressed<O>, "an observer's training_progressed needs the form: void training_progressed(const comp::training_progress&)");
  return !misnames && is_told_anything<O> && fits_search_started<O> && fits_recall<O> && fits_trial_started<O> && fits_batch_done<O> &&
         fits_trial_done<O> && fits_stop_requested<O> && fits_warned<O> && fits_search_done<O> && fits_training_progressed<O>;
}

/// Called in this order: search_started; for each run recall, trial_started, batch_done after each of its batches,
/// trial_done; search_done. Members, all optional:
///   void search_started(const search_info&)
///   std::optional<trial> recall(const trial&)      the same run as it was recorded (is_same_run()), which is then not made
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

/// All observers of a search behind one interface.
class any_observer {
 public:
  virtual ~any_observer() = default;
  virtual void search_started(const search_info& info) = 0;
  virtual std::optional<trial> recall(const trial& run) = 0;
  virtual void trial_started(const trial& t) = 0;
  virtual void batch_done(const trial& t, const sample& so_far) = 0;
  /// Returns: true if an observer wants the search to stop.
  virtual bool trial_done(const trial& t) = 0;
  virtual bool stop_requested() = 0;
  virtual void warned(const std::string& sentence) = 0;
  virtual void search_done(const outcome& result) = 0;
  virtual void training_progressed(const training_progress& now) = 0;
};

namespace detail {
/// Tells observers at once of what a user should know before the search ends; the outcome's warnings have it, too.
inline void warn(outcome& log, any_observer& observers, const std::string& sentence) {
  log.warnings.push_back(sentence);
  observers.warned(sentence);
}
}  // namespace detail

/// Calls each observer that has the member, in order. `Group::visit(call)` calls `call` with every observer.
template <class Group>
class observer_group : public any_observer {
 public:
  void search_started(const search_info& info) override {
    each([&](auto& o) -> decltype(o.search_started(info)) { return o.search_started(info); });
  }
  std::optional<trial> recall(const trial& run) override {
    std::optional<trial> recorded;
    each([&](auto& o) -> decltype(o.recall(run), void()) {
      if (!recorded) recorded = o.recall(run);
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
  // Calls `call` with each observer that it can be called with. Returns: true if one of them answered true.
  bool each(auto call) {
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

/// Keeps references, so it must not outlive the call that made it.
template <Observer... Observers>
class observer_list : public observer_group<observer_list<Observers...>> {
 public:
  explicit observer_list(Observers&... each) : each_{each...} {}

  void visit(auto&& call) {
    std::apply([&](auto&... o) { (call(o), ...); }, each_);
  }

 private:
  std::tuple<Observers&...> each_;
};

}  // namespace comp
