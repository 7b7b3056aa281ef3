// SPDX-License-Identifier: Apache-2.0
// Keeps the record of a training after a search: its epochs, the levels that are normal for their losses, and its
// warnings.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/lost_batches.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/findings.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/harm_bisection.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp::detail {

inline double seconds_per_batch(const sample& run) {
  return run.seconds / static_cast<double>(std::max<std::int64_t>(run.batches, 1));
}

/// Returns: the progress of a training when its search has ended, with the batches that the search trained as its first
/// epochs.
inline training_progress progress_after(const outcome& search, const guard_settings& guard) {
  const double loss_sign = loss_sign_of(search);
  training_progress now{.plans = search.fallbacks.empty() ? std::vector{search.plan} : search.fallbacks,
                        .later = search.later,
                        .batches_per_epoch = search.batches_per_epoch,
                        .baseline_loss = search.baseline.loss,
                        .tolerance = search.tolerance,
                        .floor = search.floor,
                        .higher_is_better = search.higher_is_better};
  recent_levels normal{guard, now.normal};
  normal.learn(make_lower_better(search.baseline.curve, loss_sign));
  const std::size_t epoch = search.batches_per_epoch, trained = epoch > 0 ? search.trained_batches : 0;
  for (std::size_t at = 0; at + epoch <= trained && epoch > 0; at += epoch) {
    now.so_far.epochs.push_back(slice(search.trained, at, at + epoch));
    normal.learn(make_lower_better(now.so_far.epochs.back().curve, loss_sign));
  }
  if (epoch > 0 && trained % epoch > 0) now.begun = slice(search.trained, trained - trained % epoch, trained);
  return now;
}

/// Returns: what a training that another process began still knows of its search.
inline outcome search_behind(const op_graph& graph, const training_progress& from) {
  require<plan_error>(from.current < from.plans.size(),
                      "a training on plan {} of {} (there is none such): go on from what training_progressed() told",
                      from.current, from.plans.size());
  for (const plan& p : from.plans) require_fits(p, graph);
  require_in_order(from.later, graph);
  return {.plan = from.plans.front(),
          .graph = graph,
          .baseline = {.loss = from.baseline_loss},
          .batches_per_epoch = from.batches_per_epoch,
          .tolerance = from.tolerance,
          .floor = from.floor,
          .higher_is_better = from.higher_is_better};
}

class training_record {
 public:
  training_record(const guard_settings& guard, training_progress& state)
      : loss_sign_{state.higher_is_better ? -1.0 : 1.0},
        normal_{guard, state.normal},
        begun_{state.begun},
        result_{state.so_far} {
    for (const sample& epoch : result_.epochs) means_.push_back(loss_sign_ * epoch.loss);
  }

  const training_result& result() const { return result_; }
  training_result take_result() { return std::move(result_); }
  recent_levels& normal() { return normal_; }
  /// Returns: the part of the next epoch that is trained already.
  const std::optional<sample>& begun() const { return begun_; }
  std::size_t begun_batches() const { return begun_ ? static_cast<std::size_t>(begun_->batches) : 0; }
  /// Returns: the part of an epoch that is trained, else the last epoch. Requires: there is one of them.
  const sample& last_run() const { return begun_ ? *begun_ : result_.epochs.back(); }
  /// Returns: how many batches were trained.
  std::size_t batches() const {
    std::size_t all = begun_batches();
    for (const sample& epoch : result_.epochs) all += static_cast<std::size_t>(epoch.batches);
    return all;
  }
  /// Returns: the mean loss of each epoch; lower is better.
  const std::vector<double>& means() const { return means_; }

  void count_comparison() { ++result_.compared; }
  void add_change(later_plan to) {
    // A plan that trained no batch is not recorded.
    if (!result_.later.empty() && result_.later.back().batch == to.batch) result_.later.pop_back();
    result_.later.push_back(std::move(to));
  }
  void warn(std::string sentence) { result_.warnings.push_back(std::move(sentence)); }
  void add_fallback(training_fallback f) { result_.fallbacks.push_back(std::move(f)); }

  /// Adds an epoch, or the rest of the one that was begun. `losses`: those of its batches.
  void add(sample run, std::vector<double> losses) {
    if (begun_) {
      append(*begun_, run);
      begun_->score = run.score;
      run = *std::exchange(begun_, std::nullopt);
      // The levels are those of the whole epoch, because its rest may be a single batch.
      if (!run.curve.empty()) losses = make_lower_better(run.curve, loss_sign_);
    }
    normal_.learn(losses);
    means_.push_back(loss_sign_ * run.loss);
    warn_of_lost(run);
    warn_of_standstill();
    result_.epochs.push_back(std::move(run));
  }

  /// Adds a part of the next epoch.
  void begin(const sample& part) {
    if (!begun_) begun_ = sample{.loss = 0};
    append(*begun_, part);  // which also gives a single lost batch its place in the curve
  }

  /// Puts `run` in the place of everything after `epoch` epochs and the part of one that is `begun`.
  void replace(std::size_t epoch, const std::optional<sample>& begun, const sample& run, std::size_t epoch_batches) {
    result_.epochs.resize(epoch);
    means_.resize(epoch);
    begun_ = begun;
    const auto batches = static_cast<std::size_t>(run.batches);
    if (epoch_batches == 0) epoch_batches = std::max<std::size_t>(begun_batches() + batches, 1);  // nobody knows it
    for (std::size_t at = 0; at < batches;) {
      const std::size_t before = begun_batches();
      const std::size_t end = std::min(batches, at + epoch_batches - before);
      sample part = slice(run, at, end);
      if (before + end - at == epoch_batches) {
        std::vector<double> losses = make_lower_better(part.curve, loss_sign_);
        add(std::move(part), std::move(losses));
      } else {
        begin(part);
      }
      at = end;
    }
  }

  /// Returns: the plan's losses after that many epochs and batches; lower is better. Empty if an epoch has no curve.
  std::vector<double> losses_since(std::size_t epoch, const std::optional<sample>& begun) const {
    std::vector<double> losses;
    const auto add = [&](const sample& run) {
      for (const double loss : run.curve) losses.push_back(loss_sign_ * loss);
      return run.curve.size() == static_cast<std::size_t>(run.batches);
    };
    for (std::size_t e = epoch; e < result_.epochs.size(); ++e) {
      if (!add(result_.epochs[e])) return {};
    }
    if (begun_ && !add(*begun_)) return {};
    const auto before = begun ? static_cast<std::ptrdiff_t>(begun->batches) : 0;
    losses.erase(losses.begin(), losses.begin() + std::min(before, std::ssize(losses)));
    return losses;
  }

  /// Returns: how many batches up to now were lost one after the other. `losses`: those of the epoch that is not added
  /// yet.
  std::int64_t lost_in_a_row(const std::vector<double>& losses) const {
    const auto is_sound = [](double loss) { return std::isfinite(loss); };
    std::int64_t count = std::find_if(losses.rbegin(), losses.rend(), is_sound) - losses.rbegin();
    if (count < std::ssize(losses)) return count;
    for (auto e = result_.epochs.rbegin(); e != result_.epochs.rend() && e->not_finite == e->batches; ++e)
      count += e->batches;
    return count;
  }

  /// Warns once if an epoch was not as long as the trainer says.
  void warn_of_length(const sample& run, std::size_t expected) {
    if (expected == 0 || static_cast<std::size_t>(run.batches) == expected || std::exchange(warned_of_length_, true))
      return;
    result_.warnings.push_back(sentence_of_wrong_length(std::to_string(run.batches), expected));
  }

  /// Warns that FP32's loss rose, for which there is no plan to give up.
  void warn_of_level(const std::vector<double>& losses) {
    const std::vector<double> finite_losses = finite_of(losses);
    result_.warnings.push_back(fmt::format(
        "FP32's loss is {:.4g} at the end of epoch {} (it was {:.4g} at most in the epochs before): "
        "where it should not rise, lower the learning rate",
        loss_sign_ * mean_of(std::span{finite_losses}.last(std::min(normal_.window(), finite_losses.size()))),
        result_.epochs.size(), loss_sign_ * normal_.highest()));
    normal_.relax();
  }

 private:
  // Warns once if an epoch has the same mean loss as the one before, so that nothing seems to be learned.
  void warn_of_standstill() {
    if (warned_of_standstill_ || means_.size() < 2) return;
    warned_of_standstill_ = std::abs(means_.back() - *(means_.end() - 2)) <= 1e-7 * std::abs(means_.back());
    if (!warned_of_standstill_) return;
    result_.warnings.push_back(fmt::format(
        "the loss of epoch {} is that of the epoch before, {:.6g} (so nothing is learned, and no plan can be "
        "seen to keep it): look whether the weights are trained",
        means_.size() - 1, loss_sign_ * means_.back()));
  }

  void warn_of_lost(const sample& run) {
    const auto lost = [](const sample& s) { return s.not_finite > 0; };
    if (!lost(run) || std::any_of(result_.epochs.begin(), result_.epochs.end(), lost)) return;
    result_.warnings.push_back(fmt::format(
        "the loss of {} of the {} batches of epoch {} is not finite (such batches are left out of means, and "
        "this is told once): look at the data of these batches, and skip the step of a batch whose "
        "gradients are not finite",
        run.not_finite, run.batches, result_.epochs.size()));
  }

  double loss_sign_;  // -1 for losses that are maximised, so that levels are of their negatives; else 1
  recent_levels normal_;
  std::optional<sample>& begun_;
  std::vector<double> means_ = {};
  bool warned_of_length_ = false, warned_of_standstill_ = false;
  training_result& result_;
};

/// An epoch, or a part of one, whose losses were watched, and how it ended.
struct watched_epoch {
  sample run = {};
  std::vector<double> losses = {};  // the loss of each batch
  shown_harm::sign shown_by = shown_harm::sign::ended;

  std::string message() const {
    if (!run.message.empty()) return run.message;
    if (shown_by == shown_harm::sign::high_losses) return "its loss rose above its recent level, and FP32's did not";
    if (shown_by == shown_harm::sign::ended) return "its loss was not finite in batch after batch, and FP32's was";
    return fmt::format("it lost {} of {} batches, whose loss was not finite, and FP32 clearly fewer",
                       count_lost(losses), losses.size());
  }
};

}  // namespace comp::detail
