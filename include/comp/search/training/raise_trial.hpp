// SPDX-License-Identifier: Apache-2.0
// Finds out whether the last part of a training should have a higher precision. The plan, and the same plan with its
// operators raised, train the same batches from the same state until their losses decide.
// Formats below 16 bits are raised to BF16 (or FP16); if a plan has none of them, its operators are raised to FP32.
// Such a change late in a training is known to recover most of the loss that low precision costs, because the noise of
// rounding hides what small learning rates still gain.
// Not here: when that is asked (guarded_training.hpp).
// Source: arXiv 2509.25149, appendix (NVFP4's pretraining ends in BF16).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/training/branch.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/shadow_test.hpp>
#include <cstddef>
#include <span>
#include <vector>

namespace comp::detail {

/// Returns: `p` with each operator below 16 bits in BF16, FP16 or FP32, the first that the trainer supports; `fp32` if
/// no operator is below 16 bits.
inline plan raised(const plan& p, const std::vector<precision>& supported, const plan& fp32) {
  if (std::none_of(p.begin(), p.end(), is_scaled)) return fp32;
  const auto has = [&](precision q) { return std::find(supported.begin(), supported.end(), q) != supported.end(); };
  const precision usual = has(precision::bf16)   ? precision::bf16
                          : has(precision::fp16) ? precision::fp16
                                                 : precision::fp32;
  plan up = p.as_autocast(false);
  for (std::size_t i = 0; i < up.size(); ++i) {
    if (is_scaled(up[i])) up[i] = usual;
  }
  return up;
}

/// Returns: the mean difference between two trainings since they parted, and its standard error. The error has two
/// parts: noise, which neighbouring batches may share, and the trainings' random walk apart, by which means of
/// successive blocks differ more than by noise. A steady drift is neither. Both are estimated without margins, because
/// a wrong answer costs a little time or a small gain, and no training. Requires: 8 batches or more.
inline path_end mean_of_path(std::span<const double> path) {
  const std::size_t n = path.size(), block = std::max<std::size_t>(2, n / 5);
  const auto count = static_cast<double>(n), b = static_cast<double>(block);
  const double mean = mean_of(path), middle = (count - 1) / 2;
  double rise = 0;
  for (std::size_t i = 0; i < n; ++i) rise += (static_cast<double>(i) - middle) * path[i];
  const double slope = rise * 12 / (count * (count * count - 1));
  std::vector<double> rest, block_steps;
  for (std::size_t i = 0; i < n; ++i) rest.push_back(path[i] - mean - slope * (static_cast<double>(i) - middle));
  const std::span all{rest};
  for (std::size_t at = block; at + block <= n; at += block)
    block_steps.push_back(mean_of(all.subspan(at, block)) - mean_of(all.subspan(at - block, block)));
  double squares = 0, products = 0, steps = 0, spread = 0;
  for (std::size_t i = 0; i < n; ++i) {
    squares += rest[i] * rest[i];
    if (i == 0) continue;
    products += rest[i] * rest[i - 1];
    steps += (rest[i] - rest[i - 1]) * (rest[i] - rest[i - 1]) / (count - 1);
  }
  const double usual_step = mean_of(block_steps);
  for (const double step : block_steps)
    spread += (step - usual_step) * (step - usual_step) / static_cast<double>(block_steps.size() - 1);
  const double correlation = std::min(0.95, std::max(0.0, squares > 0 ? products / squares : 0) + 1 / std::sqrt(count));
  const double noise = squares / (count - 2) * (1 + correlation) / (1 - correlation) / count;
  const double wandering = std::max(0.0, (spread - steps / b) / ((2 * b * b + 1) / (3 * b) - 1 / b));
  return {mean, std::sqrt(noise + wandering * count / 3)};
}

class raise_trial {
 public:
  /// Fewer batches than this tell nothing.
  static constexpr std::size_t fewest_batches = 16;

  /// Begins at the trainer's present state. `worth`: the fraction of the loss that a raised plan has to gain.
  raise_trial(evaluator& run, const plan& low, const plan& raised, double worth, double loss_sign)
      : low_{run, low, "the plan beside a higher precision"},
        raised_{run, raised, "a higher precision beside the plan"},
        worth_{worth},
        loss_sign_{loss_sign} {}

  /// Trains both for as many batches as an answer takes, `most` at most. Returns: the branch to go on from.
  const branch& decide(std::size_t most) {
    for (std::size_t batches = fewest_batches; batches <= most; batches = std::max(batches + 1, batches * 5 / 4)) {
      if (low_.train_to(batches) != status::ok || raised_.train_to(batches) != status::ok) break;
      if (low_.ends_lost() || raised_.ends_lost()) continue;
      gain_ = mean_of_path(paired_differences(losses_of(low_), losses_of(raised_)));
      // As far as noise shows, the loss is as low without it.
      if (gain_.mean + 2 * gain_.error < worth_) break;
      if (gain_.mean > worth_ && gain_.mean > beyond_wandering * gain_.error) return raised_;
    }
    return low_;
  }

  /// Returns: how much lower the raised plan's loss is, as a fraction of it.
  const path_end& gain() const { return gain_; }

 private:
  std::vector<double> losses_of(const branch& of) const { return make_lower_better(of.so_far().curve, loss_sign_); }

  branch low_, raised_;
  double worth_, loss_sign_;
  path_end gain_ = {};
};

}  // namespace comp::detail
