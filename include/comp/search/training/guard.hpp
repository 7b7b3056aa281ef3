// SPDX-License-Identifier: Apache-2.0
// Watches the training after a search by the recent level and spread of its own losses. It is not compared with the
// best epoch, so a loss that fluctuates near zero, grows, crosses zero or restarts counts as healthy. What looks
// suspicious is no verdict yet: FP32 trains the same batches from the same state for comparison (post_training.hpp). A
// lost batch, whose loss is not finite (core/lost_batches.hpp), belongs to no level.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/losses/paths.hpp>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace comp {

/// When a training with the found plan is compared with FP32.
struct guard_settings {
  bool on = true;            // false: only runs that fail or end without a finite loss are given up
  double above = 1;          // suspicious is a loss above its recent highest level plus this many times its spread
  std::size_t batches = 20;  // a level is the mean of this many batches, or of a quarter of an epoch if that is less
  double worse = 0.05;       // a plan without progress is given up if FP32's loss is lower by this fraction
  double evidence = 0.02;    // the fraction of the training's time that FP32 may take to check a plan without suspicion
};

namespace detail {

/// The levels of the last two epochs. A level is the mean loss of some successive batches.
class recent_levels {
 public:
  recent_levels(const guard_settings& settings, normal_levels& state) : settings_{settings}, state_{state} {}

  /// Learns the levels of an epoch, or of a part of one, that counts as normal.
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
    state_.epochs.push_back({low, high});
    if (state_.epochs.size() > 2) state_.epochs.pop_front();
  }

  std::size_t window() const { return state_.window; }
  /// Returns: the highest level of the last epochs; infinity if nothing is known yet.
  double highest() const {
    double high = state_.epochs.empty() ? std::numeric_limits<double>::infinity() : state_.epochs.front().high;
    for (const auto& epoch : state_.epochs) high = std::max(high, epoch.high);
    return high;
  }
  /// Returns: the line that two levels in a row have to be above to be suspicious.
  double line() const {
    double low = highest();
    for (const auto& epoch : state_.epochs) low = std::min(low, epoch.low);
    return highest() + state_.leeway * settings_.above * std::max(highest() - low, std::abs(highest()) / 4);
  }
  /// Raises the line after a false alarm, or one that was reported: the next one takes twice as much.
  void relax() { state_.leeway *= 2; }

  /// Returns: true if the last batches of `losses` are suspicious: two levels in a row are above the line, or one is
  /// far above it. `at_end`: no more batches will come in this epoch; one level above the line is then enough, also of
  /// a short epoch. Requires: finite losses.
  bool suspects(std::span<const double> losses, bool at_end) const {
    if (state_.epochs.empty() || losses.empty() || (!at_end && losses.size() < state_.window)) return false;
    const auto last = losses.last(std::min(state_.window, losses.size()));
    const double level = mean_of(last);
    if (!(level > line())) return false;
    if (at_end || level > highest() + 3 * (line() - highest())) return true;
    return losses.size() >= 2 * state_.window && mean_of(losses.last(2 * state_.window).first(state_.window)) > line();
  }

  /// Returns: true if an epoch lost so many batches that FP32 has to show whether it would lose them, too.
  bool loses_many(const std::vector<double>& losses) const {
    const auto lost = static_cast<double>(count_lost(losses));
    return lost >= 3 * state_.leeway && 100 * lost > static_cast<double>(losses.size());
  }

 private:
  guard_settings settings_;
  normal_levels& state_;
};

/// Collects the losses of an epoch while it runs, and returns the status to end it with.
class epoch_watch {
 public:
  /// `loss_sign`: -1 for losses that are maximised, so that levels are of their negatives; else 1. `ends_suspicious`:
  /// true if an epoch ends when it becomes suspicious.
  epoch_watch(const recent_levels& normal, bool ends_suspicious, double loss_sign)
      : normal_{normal}, ends_suspicious_{ends_suspicious}, loss_sign_{loss_sign} {}

  status operator()(const sample& so_far) {
    add_new_losses(so_far);
    if (keeps_losing(so_far)) return status::not_finite;
    if (!ends_suspicious_ || !normal_.suspects(finite_losses_, false)) return status::ok;
    return status::diverged;
  }
  /// Returns: the loss of each batch of the run; the mean alone for a backend that reports no more.
  std::vector<double> losses_of(const sample& run) const {
    if (!run.curve.empty()) return make_lower_better(run.curve, loss_sign_);
    return losses_.empty() ? std::vector{loss_sign_ * run.loss} : losses_;
  }

 private:
  // A backend without a curve reports the mean so far, from which the last batch's loss follows.
  void add_new_losses(const sample& so_far) {
    const auto n = static_cast<std::size_t>(std::max<std::int64_t>(so_far.batches, 0));
    if (so_far.curve.size() > losses_.size()) {
      for (std::size_t i = losses_.size(); i < so_far.curve.size(); ++i) add_loss(loss_sign_ * so_far.curve[i]);
    } else if (so_far.curve.empty() && n > losses_.size()) {
      const double sum = loss_sign_ * so_far.loss * static_cast<double>(n);
      for (const double each = (sum - sum_) / static_cast<double>(n - losses_.size()); losses_.size() < n;)
        add_loss(each);
      sum_ = sum;
    }
  }
  void add_loss(double loss) {
    losses_.push_back(loss);
    if (std::isfinite(loss)) finite_losses_.push_back(loss);
  }

  const recent_levels& normal_;
  bool ends_suspicious_;
  double loss_sign_, sum_ = 0;
  std::vector<double> losses_, finite_losses_;  // the losses of all batches, and of those that were not lost
};

/// Returns: true if FP32 does better on the same batches from the same state: it stays within the normal levels, and
/// below the plan in nine batches of ten.
inline bool is_clearly_better(std::span<const double> fp32, std::span<const double> suspect,
                              const recent_levels& normal) {
  const auto [fp32_losses, suspect_losses] = finite_pairs(fp32, suspect);
  const std::size_t n = fp32_losses.size(), compared = std::min(n, normal.window());
  if (n == 0) return false;
  std::size_t below = 0;
  for (std::size_t i = n - compared; i < n; ++i) below += fp32_losses[i] < suspect_losses[i] ? 1U : 0U;
  return mean_of(std::span{fp32_losses}.last(compared)) <= normal.highest() && 10 * below >= 9 * compared;
}

/// Returns: true if FP32 loses clearly fewer of the same batches. Batches that are lost because of the data are lost by
/// both.
inline bool loses_fewer_batches(std::span<const double> fp32, std::span<const double> suspect) {
  return lost_alone(suspect, fp32) >= 3 + 2 * lost_alone(fp32, suspect);
}

/// Chooses the epochs in which FP32 trains next to the plan as a check: those after 4, 8, 16, ... epochs of the plan,
/// if the loss improved by less than 10% over the last half of these. After two checks that found no harm, the next
/// comes after four times as many epochs at the earliest. If another plan was given up before, FP32 also trains after
/// epochs 1 and 2 of the plan, whatever the loss.
class check_times {
 public:
  explicit check_times(check_state& state) : state_{state} {}

  bool is_due(std::size_t epoch, const std::vector<double>& means) const {
    const std::size_t since = epoch - state_.began;
    if (!std::has_single_bit(since) || since < state_.next) return false;
    if (since <= 2) return true;
    const double now = means.back(), then = means[means.size() - 1 - since / 2];
    return then - now < 0.1 * std::max(std::abs(now), std::abs(then));
  }
  /// Notes that the plan's first batches need no further evidence.
  void pass_beginning() { state_.beginning_passed = true; }
  void record_passed(std::size_t epoch) {
    const std::size_t since = epoch - state_.began;
    state_.next = ++state_.passed < 2 || since < 4 ? since + 1 : 4 * since;
  }
  void plan_changed(std::size_t epoch) { state_ = {.began = epoch, .next = 1}; }

 private:
  check_state& state_;
};

}  // namespace detail

}  // namespace comp
