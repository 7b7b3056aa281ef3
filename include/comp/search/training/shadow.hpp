// SPDX-License-Identifier: Apache-2.0
// Tells from few batches whether a plan does harm that grows over hundreds of them, by comparing its losses with those
// of FP32 on the same batches from the same state.
// The noise of the data is in both losses and cancels. Two things are left: one training wanders from the next, by an
// amount that is estimated from the differences themselves; and there may be a drift, which is harm. The likelihood
// ratio of "drifts" to "does not drift" is looked at after every few batches, so that a harmless plan costs no more of
// them than its answer takes.
// Source: Wald 1945 (sequential probability ratio test); Allan 1966 (noise by the scale at which it is looked at).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/plan.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/training_record.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp::detail {

enum class shadow_answer : std::uint8_t { go_on, suspicious, harmless, harmful };

/// No path of fewer batches is judged.
inline constexpr std::size_t first_look = 8;

/// FP32 itself wanders by fewer standard errors than this.
inline constexpr double beyond_wandering = 2.7;

/// The question that FP32's training next to a plan is to answer.
struct shadow_question {
  double line = paper_tolerance;  // harm is a difference above this fraction of the loss
  double drift = 3e-4;            // the fraction of the loss by which harm is thought to grow per batch
  double missed = 0.05;           // the chance that a plan with such a drift is taken for harmless
  double evidence = 0;            // logarithm of the likelihood ratio that earlier batches gave
};

/// Returns: the question for a plan's first batches: harm that would reach three times the tolerance within a hundred
/// batches.
inline shadow_question shadow_of_beginning(double tolerance, double evidence) {
  return {.line = tolerance, .drift = 0.03 * tolerance, .evidence = evidence};
}
/// Returns: the question for a check in an epoch of `batches` batches: is FP32 better by twice `worse` at its end?
inline shadow_question shadow_of_check(double worse, std::size_t batches) {
  return {.line = worse, .drift = 2 * worse / static_cast<double>(batches)};
}

/// Returns: end_of_path() of a path that only drifts: the mean of its last third is 5/6 of its end.
inline double expected_end(const shadow_question& question, double batches) { return question.drift * 5 / 6 * batches; }

/// Returns: the logarithm of how much likelier the path is with the drift than without one.
inline double drift_likelihood(const shadow_question& question, std::span<const double> path) {
  if (path.size() < 4) return question.evidence;
  const path_mean end = end_of_path(path);
  const double expected = expected_end(question, static_cast<double>(path.size()));
  // At least this, for losses that repeat themselves to the bit.
  const double error = std::max(end.error, 1e-3 * question.line);
  return question.evidence + (end.mean * expected - expected * expected / 2) / (error * error);
}

/// Returns: the logarithm of the likelihood ratio of slow harm, from the batches by which the search judged its plan.
inline double evidence_of_search(const outcome& search) {
  std::vector<double> path;
  for (const trial& t : search.trials) {
    if (t.stage != stage::losses || t.plan != search.plan || t.purpose != purpose::judge || !t.sample.ok()) continue;
    path = paired_differences(make_lower_better(t.sample.curve, loss_sign_of(search)),
                              make_lower_better(search.baseline.curve, loss_sign_of(search)));
  }
  return drift_likelihood(shadow_of_beginning(search.tolerance, 0), path);
}

/// Returns: true if `batches` batches could tell the drift from wandering.
inline bool could_tell(const shadow_question& question, std::span<const double> path, double batches) {
  const double error = end_of_path(path).error * std::sqrt(batches / static_cast<double>(path.size()));
  return expected_end(question, batches) > 1.4 * error;
}

/// Judges a path. It is harmful if it ends above the line by more than FP32 itself wanders; suspicious if more batches
/// are worth their time.
inline shadow_answer judge_shadow(const shadow_question& question, std::span<const double> path) {
  constexpr double suspicious = 1;
  if (path.size() < first_look) return shadow_answer::go_on;
  const path_mean end = end_of_path(path);
  if (path.size() >= 16 && end.mean > question.line && end.mean > beyond_wandering * end.error)
    return shadow_answer::harmful;
  const double likely = drift_likelihood(question, path);
  if (likely < std::log(question.missed)) return shadow_answer::harmless;
  return likely > suspicious ? shadow_answer::suspicious : shadow_answer::go_on;
}

// A training under another plan that branches off at a state of the training itself, so that both can be compared on
// the same batches.

class branch {
 public:
  /// Begins at the trainer's present state. `label`: what its trials are called.
  branch(evaluator& run, comp::plan plan, std::string label)
      : run_{run}, plan_{std::move(plan)}, label_{std::move(label)}, end_{run.save()} {}

  /// Trains until the branch has `batches` batches. Returns: how the trainer, which is left in another state, ended.
  status train_to(std::size_t batches) {
    const trial t = run_.run_and_record(stage::training, plan_, label_, [&](const trial& begun) {
      run_.restore(end_);
      sample more;
      run_.train(begun, plan_, batches - size(), more, cut_if_not_finite);
      return more;
    });
    if (t.sample.ok()) {
      end_ = {};  // before the next state is made, because a state is large
      end_ = run_.save();
      append(so_far_, t.sample);
    }
    return t.sample.status;
  }

  const comp::plan& plan() const { return plan_; }
  std::size_t size() const { return static_cast<std::size_t>(so_far_.batches); }
  const sample& so_far() const { return so_far_; }
  /// Returns: the loss of each batch; lower is better.
  std::vector<double> losses() const { return make_lower_better(so_far_.curve, loss_sign_of(run_.log())); }
  /// Returns: true if its last batch was lost, so that its weights may be damaged.
  bool ends_lost() const { return comp::ends_lost(so_far_); }
  /// Returns: the trainer's state after its last batch.
  const checkpoint& end() const { return end_; }

 private:
  evaluator& run_;
  comp::plan plan_;
  std::string label_;
  checkpoint end_;
  sample so_far_ = {.loss = 0};
};

/// FP32's training next to a plan, on the same batches from the same state. Its losses are compared with those that the
/// plan's own training recorded, so that evidence costs FP32's batches alone. Two states are kept: its first one and
/// its present one.
struct fp32_shadow {
  branch fp32;
  std::size_t epoch;  // it begins after so many epochs, and the part of the next one that is `begun`
  std::optional<sample> begun;
  shadow_question question;
  bool at_beginning;  // the question is about the plan's first batches, not a later check
  checkpoint start = fp32.end();
  std::size_t batches_before_harm = 0;  // fewer show no harm, because it did not appear again when it was repeated

  /// Judges the batches so far. `path`: the differences of their losses.
  shadow_answer judge(std::span<const double> path) const {
    const shadow_answer answer = judge_shadow(question, path);
    return answer == shadow_answer::harmful && fp32.size() < batches_before_harm ? shadow_answer::suspicious : answer;
  }
};

// Decides when FP32 trains next to a plan, and how far: from the plan's start until it is known to do no slow harm, and
// again, as a check, in epochs without progress.

class shadow_watch {
 public:
  /// Keeps references to its arguments. `epochs`: those of the whole training.
  shadow_watch(const guard_settings& guard, std::size_t epochs, evaluator& run, training_record& record,
               check_state& state)
      : guard_{guard}, epochs_{epochs}, run_{run}, record_{record}, state_{state} {}

  /// Returns: FP32's training next to the plan; empty if none is under way.
  const std::optional<fp32_shadow>& shadow() const { return shadow_; }

  /// Call it before an epoch. Begins FP32's training if the plan is new, or the epoch is to be checked.
  void begin_epoch() {
    if (shadow_) return;
    const std::size_t epoch = run_.log().batches_per_epoch, done = record_.result().epochs.size();
    const shadow_question beginning = shadow_of_beginning(run_.log().tolerance, state_.known);
    // The batches of the search have already shown that it does no slow harm.
    if (beginning.evidence < std::log(beginning.missed)) checks_.pass_beginning();
    const bool watches_beginning = !state_.beginning_passed && guard_.evidence * planned_batches() >= 2.0 * first_look;
    const bool checks = epoch > 0 && !record_.begun() && checks_.is_due(done, record_.means());
    if (!watches_beginning && !checks) return;
    shadow_.emplace(fp32_shadow{.fp32 = {run_, run_.fp32(), "fp32 beside the plan"},
                                .epoch = done,
                                .begun = record_.begun(),
                                .question = watches_beginning ? beginning : shadow_of_check(guard_.worse, epoch),
                                .at_beginning = watches_beginning});
  }

  /// Call it after an epoch of the plan, or a part of one. Trains FP32 on the plan's batches, as many as an answer
  /// takes. Returns: the plan's losses if they show harm; else nothing.
  std::vector<double> find_harm() {
    if (!shadow_) return {};
    const std::vector<double> plan = record_.losses_since(shadow_->epoch, shadow_->begun);
    if (plan.empty()) pass_check();  // without losses of batches nothing can be compared
    while (shadow_) {
      const std::size_t now = shadow_->fp32.size(),
                        next = std::min(plan.size(), std::max({first_look, now + 3, now + now / 4}));
      const std::vector<double> path = paired_differences(plan, shadow_->fp32.losses());
      const shadow_answer answer = shadow_->judge(path);
      if (answer == shadow_answer::harmful)
        return {plan.begin(), plan.begin() + std::ssize(shadow_->fp32.so_far().curve)};
      if (answer == shadow_answer::harmless || !affords(next, answer, path)) {
        pass_check();
      } else if (next == now) {
        break;  // FP32 trains on when the plan has trained further
      } else {
        if (now == 0) record_.count_comparison();
        const status end = shadow_->fp32.train_to(next);
        run_.restore_kept_state();
        if (end != status::ok) pass_check();
      }
    }
    return {};
  }

  /// Call it if the harm that find_harm() found did not repeat: from now on twice as many batches have to show it.
  void require_twice_the_batches() { shadow_->batches_before_harm = 2 * shadow_->fp32.size(); }
  /// Ends FP32's training, because the batches that follow are not the plan's.
  void drop_shadow() { shadow_.reset(); }
  void plan_changed(std::size_t epoch) {
    drop_shadow();
    checks_.plan_changed(epoch);
  }

 private:
  void pass_check() {
    shadow_->at_beginning ? checks_.pass_beginning() : checks_.record_passed(shadow_->epoch);
    shadow_.reset();
  }

  double planned_batches() const { return static_cast<double>(epochs_ * run_.log().batches_per_epoch); }

  // Returns: true if more of FP32's batches may be run. Their time is lost, because either they are undone or the
  // plan's are. A later check may take an epoch.
  bool affords(std::size_t batches, shadow_answer answer, std::span<const double> path) const {
    if (shadow_->fp32.size() < first_look) return true;
    constexpr double when_suspicious = 5;
    const bool suspicious = answer == shadow_answer::suspicious;
    const double slower = seconds_per_batch(shadow_->fp32.so_far()) / seconds_per_batch(record_.last_run());
    double most_batches = guard_.evidence * planned_batches() / slower * (suspicious ? when_suspicious : 1);
    if (!shadow_->at_beginning)
      most_batches = std::max(most_batches, static_cast<double>(run_.log().batches_per_epoch));
    return static_cast<double>(batches) <= most_batches &&
           (suspicious || could_tell(shadow_->question, path, most_batches));
  }

  const guard_settings& guard_;
  std::size_t epochs_;
  evaluator& run_;
  training_record& record_;
  check_state& state_;
  check_times checks_{state_};
  std::optional<fp32_shadow> shadow_ = {};
};

}  // namespace comp::detail
