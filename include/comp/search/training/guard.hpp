// SPDX-License-Identifier: Apache-2.0
// How the losses of the training after a search are watched. They are compared with their own recent level and spread,
// never with the best epoch, because healthy losses may fluctuate around nearly nothing, grow, cross zero or restart. A
// suspicion is no verdict: FP32 trains the same batches from the same state before a plan is given up
// (post_training.hpp). A lost batch, whose loss is not
// finite (core/lost_batches.hpp), belongs to no level.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/training_progress.hpp>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace comp {

/// When a training with the found plan is looked at closely.
struct guard_settings {
  bool on = true;            // false: only runs that fail or end without a finite loss are given up
  double above = 1;          // so many times its recent spread above its recent highest level a loss is suspicious
  std::size_t batches = 20;  // that a level is the mean of; a quarter of an epoch where that is less
  double worse = 0.05;       // a plan that makes no progress is given up when FP32 is better by more, of the loss
  double evidence = 0.02;    // of the training's time: at most so much of FP32 beside a plan that is not suspicious
};

namespace detail {

/// The levels of the last two epochs, a level being the mean loss of some successive batches.
class recent_levels {
 public:
  explicit recent_levels(const guard_settings& settings, normal_levels from = {})
      : settings_{settings}, state_{std::move(from)} {}

  const normal_levels& state() const { return state_; }

  /// Adds the losses of an epoch, or of a part of one, that counts as normal.
  void learn(std::span<const double> all) {
    const std::vector<double> losses = finite_of(all);
    if (losses.empty()) return;
    state_.window = std::clamp<std::size_t>(losses.size() / 4, 1, std::max<std::size_t>(settings_.batches, 1));
    double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      sum += losses[i] - (i >= state_.window ? losses[i - state_.window] : 0);
      if (i + 1 < state_.window) continue;
      low = std::min(low, sum / static_cast<double>(state_.window));
      high = std::max(high, sum / static_cast<double>(state_.window));
    }
    state_.epochs.emplace_back(low, high);
    if (state_.epochs.size() > 2) state_.epochs.pop_front();
  }

  std::size_t window() const { return state_.window; }
  /// Returns: the highest level of the last epochs; infinity where there is none yet.
  double highest() const {
    double high = state_.epochs.empty() ? std::numeric_limits<double>::infinity() : state_.epochs.front().second;
    for (const auto& epoch : state_.epochs) high = std::max(high, epoch.second);
    return high;
  }
  /// Returns: the line above which two levels in a row are suspicious.
  double line() const {
    double low = highest();
    for (const auto& epoch : state_.epochs) low = std::min(low, epoch.first);
    return highest() + state_.leeway * settings_.above * std::max(highest() - low, std::abs(highest()) / 4);
  }
  /// A suspicion was unfounded, or was told. The next one takes twice the distance.
  void relax() { state_.leeway *= 2; }

  /// Returns: true where the last batches of `losses` are suspicious: two levels in a row are above the line, or one is
  /// far above it. `ended`: the epoch is over, so one level above the line is enough.
  /// Requires: finite losses.
  bool suspects(std::span<const double> losses, bool ended) const {
    if (state_.epochs.empty() || losses.empty() || (!ended && losses.size() < state_.window)) return false;
    const auto last = losses.last(std::min(state_.window, losses.size()));
    const double level = mean_of(last);
    if (!(level > line())) return false;
    if (ended || level > highest() + 3 * (line() - highest())) return true;
    return losses.size() >= 2 * state_.window && mean_of(losses.last(2 * state_.window).first(state_.window)) > line();
  }

  /// Returns: true where an epoch lost so many batches that FP32 has to show whether it loses them, too.
  bool loses_many(const std::vector<double>& losses) const {
    const auto lost = static_cast<double>(count_lost(losses));
    return lost >= 3 * state_.leeway && 100 * lost > static_cast<double>(losses.size());
  }

 private:
  guard_settings settings_;
  normal_levels state_;
};

inline std::vector<double> made_lower_better(std::vector<double> losses, double worse) {
  for (double& loss : losses) loss *= worse;
  return losses;
}

/// Collects an epoch's losses while it runs and names the status with which to end it.
class epoch_watch {
 public:
  /// `worse`: -1 for losses that are maximised: all levels are then of their negatives.
  epoch_watch(const recent_levels& normal, bool ends_suspicious, double worse)
      : normal_{normal}, ends_suspicious_{ends_suspicious}, worse_{worse} {}

  status operator()(const sample& so_far) {
    take(so_far);
    if (keeps_losing(so_far)) return status::not_finite;
    if (!ends_suspicious_ || !normal_.suspects(sound_, false)) return status::ok;
    return status::diverged;
  }
  /// Loss of each batch of the run that was watched; its mean alone for a backend that tells no more.
  std::vector<double> losses_of(const sample& run) const {
    if (!run.curve.empty()) return made_lower_better(run.curve, worse_);
    return losses_.empty() ? std::vector{worse_ * run.loss} : losses_;
  }

 private:
  // A backend without a curve tells the mean so far, from which the last batch's loss follows.
  void take(const sample& so_far) {
    const auto n = static_cast<std::size_t>(std::max<std::int64_t>(so_far.batches, 0));
    if (so_far.curve.size() > losses_.size()) {
      for (std::size_t i = losses_.size(); i < so_far.curve.size(); ++i) add(worse_ * so_far.curve[i]);
    } else if (so_far.curve.empty() && n > losses_.size()) {
      const double sum = worse_ * so_far.loss * static_cast<double>(n);
      for (const double each = (sum - sum_) / static_cast<double>(n - losses_.size()); losses_.size() < n;) add(each);
      sum_ = sum;
    }
  }
  void add(double loss) {
    losses_.push_back(loss);
    if (std::isfinite(loss)) sound_.push_back(loss);
  }

  const recent_levels& normal_;
  bool ends_suspicious_;
  double worse_, sum_ = 0;
  std::vector<double> losses_, sound_;  // of all batches, and without those that were lost
};

/// Returns: true where FP32, on the same batches from the same state, does not do what made a plan suspicious: its
/// losses stay within the normal levels, and below the plan's in nine batches of ten.
inline bool clearly_better(std::span<const double> fp32, std::span<const double> suspect, const recent_levels& normal) {
  std::vector<double> base, got;
  for (std::size_t i = 0; i < std::min(fp32.size(), suspect.size()); ++i) {
    if (!std::isfinite(fp32[i]) || !std::isfinite(suspect[i])) continue;
    base.push_back(fp32[i]);
    got.push_back(suspect[i]);
  }
  const std::size_t n = base.size(), looked_at = std::min(n, normal.window());
  if (n == 0) return false;
  std::size_t below = 0;
  for (std::size_t i = n - looked_at; i < n; ++i) below += base[i] < got[i] ? 1U : 0U;
  return mean_of(std::span{base}.last(looked_at)) <= normal.highest() && 10 * below >= 9 * looked_at;
}

/// Returns: true where FP32 loses clearly fewer of the same batches. Batches that are lost because of the data are lost
/// by both.
inline bool loses_less(std::span<const double> fp32, std::span<const double> suspect) {
  return lost_alone(suspect, fp32) >= 3 + 2 * lost_alone(fp32, suspect);
}

/// Which epochs under a plan are audited: the fourth, eighth, ... since it began, when the loss is no better than half
/// as many epochs ago, and after two acquittals not before four times as many; where another plan was given up before,
/// the first and second too, whatever the loss.
class audit_times {
 public:
  explicit audit_times(audit_state from = {}) : state_{from} {}

  const audit_state& state() const { return state_; }
  bool due(std::size_t epoch, const std::vector<double>& means) const {
    const std::size_t since = epoch - state_.began;
    if (!std::has_single_bit(since) || since < state_.next) return false;
    if (since <= 2) return true;
    const double now = means.back(), then = means[means.size() - 1 - since / 2];
    return then - now < 0.1 * std::max(std::abs(now), std::abs(then));
  }
  /// The batches of the search were evidence enough for the plan's first batches.
  void settle() { state_.settled = true; }
  void acquitted(std::size_t epoch) {
    const std::size_t since = epoch - state_.began;
    state_.next = ++state_.acquittals < 2 || since < 4 ? since + 1 : 4 * since;
  }
  void plan_given_up(std::size_t epoch) { state_ = {.began = epoch, .next = 1}; }

 private:
  audit_state state_;
};

}  // namespace detail

}  // namespace comp
