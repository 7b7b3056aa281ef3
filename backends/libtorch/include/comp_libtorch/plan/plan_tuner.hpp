// SPDX-License-Identifier: Apache-2.0
// Says how the plans of a training are run, and when that is measured. A plan is run as was measured for it, else as
// was measured for a plan of the same low precision. FP32 is measured only as a plan of its own (plan::is_tuned).
// The best way depends on model and machine, and little on the plan: measuring each candidate would cost 28 to 85
// batches, and more than a short epoch gives back.
#pragma once

#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <comp/files/plan_file.hpp>
#include <comp_libtorch/plan/executor_tuning.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch {

class plan_tuner {
 public:
  /// For the plans of `p`, which has to outlive this. `agree`: see setup::agree.
  plan_tuner(program& p, executor_choices how, tuning_settings settings = {}, agreement agree = {})
      : program_{p}, measures_{how == executor_choices::measured}, settings_{settings}, agree_{std::move(agree)} {}

  /// Throws: as program::set_plan.
  void set_plan(const plan& p) {
    if (p != program_.current_plan()) program_.set_plan(p);
    if (!measures_ || p.runs_autocast()) return;
    const tuned_choice* known = find(p);
    use(program_, known == nullptr ? executor_choice{} : known->choice);
  }

  /// Returns: how the current plan is run, as far as that was measured or is fixed; nothing for FP32 that is not tuned
  /// and for autocast's.
  comp::execution execution() const {
    const plan& now = program_.current_plan();
    if (!detail::is_tunable(now, program_.graph())) return {};
    if (!measures_) return execution_of({.choice = choice_in(program_.settings())});
    const tuned_choice* known = find(now);
    return known == nullptr ? comp::execution{} : execution_of(*known);
  }

  /// Returns: what was found for `p`, else for a plan of the same low precision; null: nothing.
  const tuned_choice* find(const plan& p) const {
    if (const auto own = by_plan_.find(p); own != by_plan_.end()) return &own->second;
    const auto low = detail::prevailing(p);
    const auto alike = low ? by_precision_.find(*low) : by_precision_.end();
    return alike == by_precision_.end() ? nullptr : &alike->second;
  }

  /// Returns: whether there are choices that FP32 may be run by.
  bool may_tune_fp32() const {
    if (!measures_ || !program_.settings().device.is_cpu()) return false;
    const executor_options open = options_of(as_written(program_.graph()).as_tuned());
    return open.images || !open.kernels.empty();
  }

  /// Leaves out, for all plans, what a step may have failed by: first comp's kernels, then channels-last images, too.
  /// Returns: false if both were left out already. Then the plan itself fails, and later plans may have both.
  bool leave_out_more() {
    if (!std::exchange(without_kernels_, true) || !std::exchange(without_images_, true)) return true;
    without_kernels_ = without_images_ = false;
    return false;
  }

  void learn(const plan& p, const tuned_choice& tuned) {
    by_plan_[p] = tuned;
    if (const auto low = detail::prevailing(p)) by_precision_.try_emplace(*low, tuned);
  }

  /// Learns what a plan file says, if its plan was found on a machine like `here`. Returns: sentences on what was not
  /// taken.
  std::vector<std::string> learn(const loaded_plan& from, const hardware& here) {
    tuned_choice tuned;
    const auto left_out = apply(from, here, tuned);
    if (!from.execution.empty() && left_out.empty()) learn(from.plan, tuned);
    return left_out;
  }

  /// Notes that the current plan trained `run`.
  void trained(const sample& run) {
    const plan& now = program_.current_plan();
    if (now != trained_) batches_in_a_row_ = 0;
    trained_ = now;
    batches_in_a_row_ += run.batches;
    if (run.ok() && now == as_written(program_.graph())) fp32_seconds_ = median(run.batch_seconds);
  }
  void trained_epoch(const sample& run) {
    if (run.ok()) expect_epochs_of(run.batches);
    trained(run);
  }
  /// A search trains single batches, so that no epoch says how long one is. `batches`: 0 if it is not known.
  void expect_epochs_of(std::int64_t batches) {
    if (batches > 0) batches_per_epoch_ = batches;
  }

  /// Returns: whether the current plan should be measured before it trains on.
  bool needs_measuring() {
    const plan& now = program_.current_plan();
    const auto low = detail::prevailing(now);
    if (!measures_ || !low || now.runs_autocast() || by_plan_.contains(now)) return false;
    if (has_trained_long()) return true;
    if (by_precision_.contains(*low)) return false;
    if (batches_per_epoch_ >= settings_.shortest_epoch) return true;
    const double steps = steps_of_quick();
    return steps > 0 && steps <= settings_.most_epochs * static_cast<double>(batches_per_epoch_);
  }

  /// Measures how the current plan is best run, and runs it so from now on. Returns: the choice; nothing for autocast's
  /// plan, which LibTorch runs. `batch()` trains one and returns its seconds.
  template <class Batch>
  tuned_choice measure(Batch batch) {
    return measure(batch, settings_);
  }
  /// Does the same as quickly as the length of an epoch asks for, for a plan that may be too slow to be worth it.
  template <class Batch>
  tuned_choice measure_unless_hopeless(Batch batch) {
    const bool thorough = has_trained_long() || batches_per_epoch_ >= settings_.shortest_epoch;
    if (!is_hopeless(batch)) return measure(batch, thorough ? settings_ : quick(settings_));
    learn(program_.current_plan(), {});
    return {};
  }

  /// Returns: the times that the slowest of several ranks has. They choose by these, so that all choose alike, and
  /// train as many batches for it.
  step_times of_slowest(step_times own) const {
    if (!agree_) return own;
    std::vector<double> times{own.seconds};
    for (const op_time& each : own.operators) times.insert(times.end(), {each.forward, each.backward});
    times = agree_(std::move(times));
    own.seconds = times[0];
    for (std::size_t i = 0; i < own.operators.size(); ++i) own.operators[i] = {times[2 * i + 1], times[2 * i + 2]};
    return own;
  }

 private:
  executor_options options_of(const plan& p) const {
    executor_options open = program_.options_of(p);
    if (without_kernels_) open.kernels.clear();
    open.images = open.images && !without_images_;
    return open;
  }

  template <class Batch>
  tuned_choice measure(Batch batch, const tuning_settings& settings) {
    const plan& now = program_.current_plan();
    if (now.runs_autocast()) return {};
    const tuned_choice tuned = measured_choice(
        {options_of(now), settings}, [&](const executor_choice& c) { use(program_, c); },
        [&](bool by_operator) { return of_slowest(timed_step(program_, by_operator, batch)); });
    if (settings.quick) {
      by_precision_.try_emplace(*detail::prevailing(now), tuned);
    } else {
      learn(now, tuned);
    }
    return tuned;
  }

  bool has_trained_long() const {
    return program_.current_plan() == trained_ && batches_in_a_row_ >= settings_.trained_with;
  }
  /// Returns: the steps of a quick measurement of the current plan.
  double steps_of_quick() {
    const plan& now = program_.current_plan();
    const auto [at, is_new] = quick_steps_.try_emplace(now);
    if (is_new) {
      const choice_measurement measurement{options_of(now), quick(settings_)};
      at->second = static_cast<double>(measurement.least_steps());
    }
    return at->second;
  }

  /// Returns: whether the plan is too slow to be measured. If the first batch takes 1 to 4 times the limit, it may have
  /// paid for what is made once, and a second one tells.
  template <class Batch>
  bool is_hopeless(Batch batch) const {
    const double limit = of_slowest(step_times{settings_.hopeless * fp32_seconds_}).seconds;
    if (limit <= 0) return false;
    const auto seconds = [&] { return of_slowest(step_times{batch()}).seconds; };
    const double first = seconds();
    return first > limit && (first >= 4 * limit || seconds() > limit);
  }

  program& program_;
  bool measures_;
  tuning_settings settings_;
  agreement agree_;
  std::map<plan, tuned_choice> by_plan_;            // what was measured for a plan itself, thoroughly
  std::map<precision, tuned_choice> by_precision_;  // for plans in which this low precision prevails
  std::map<plan, double> quick_steps_;              // of plans that were not measured
  plan trained_;                                    // the plan that trained last
  std::int64_t batches_in_a_row_ = 0, batches_per_epoch_ = 0;
  double fp32_seconds_ = 0;  // [s] of a batch
  bool without_kernels_ = false, without_images_ = false;
};

}  // namespace comp::libtorch
