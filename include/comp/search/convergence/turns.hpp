// SPDX-License-Identifier: Apache-2.0
// Judges a plan on a trainer that cannot restore its state. FP32 and the plan take turns on the batches that follow, in
// blocks, and the difference of their losses is attributed to the plan.
// The loss falls meanwhile. In the order FPPF PFFP (F: FP32, P: plan; the Thue-Morse sequence) a trend that is straight
// or bends once cancels. A block is long enough to show harm that builds up within some batches. All batches are
// training, so that judging only costs the time by which FP32 is slower.
// Not here: comparing the same batches from the same state, which tells far more (loss_test.hpp).
// Source: Prouhet 1851 (the order, for polynomials of any degree).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/convergence/loss_test.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace comp {

/// For each block of a round: true where the plan trains it, false for FP32.
inline constexpr std::array<bool, 8> order_of_turns{false, true, true, false, true, false, false, true};

/// How long FP32 and the plan take turns.
struct turn_lengths {
  std::size_t block = 16, rounds = 8;  // batches of a block; rounds at most

  /// Returns: lengths that together are about a twentieth of the training at most. `planned`: batches of the training;
  /// 0: not known.
  static turn_lengths of_training(std::size_t planned) {
    const std::size_t most = planned > 0 ? std::clamp<std::size_t>(planned / 20, 64, 1024) : 1024;
    const std::size_t block = std::clamp<std::size_t>(most / 32, 4, 16);
    return {block, std::max<std::size_t>(most / (order_of_turns.size() * block), 1)};
  }
};

namespace detail {

/// What the losses of one round say: the plan's mean less FP32's and the variance of that, both relative to FP32's
/// loss.
struct round_of_turns {
  double difference = 0, variance = 0;
};

/// Returns: what round `number` says. `own`, `fp32`: all losses so far, those of that round included. `worse`: 1 where
/// a larger loss is worse, else -1. A batch whose loss is not finite counts as a loss of the whole scale.
inline round_of_turns look_at_round(const std::vector<double>& fp32, const std::vector<double>& own, std::size_t number,
                                    std::size_t block, double worse) {
  const std::size_t start = number * block * order_of_turns.size() / 2;
  std::size_t at[2] = {start, start};
  double difference = 0, scale = 0, squares = 0, freedom = 0, own_lost = 0, fp32_lost = 0;
  for (const bool is_own : order_of_turns) {
    const double sign = is_own ? 1 : -1;
    const std::vector<double> losses = finite_of(std::span{is_own ? own : fp32}.subspan(at[is_own], block));
    at[is_own] += block;
    const double middle = mean_of(losses);
    for (const double loss : losses) squares += (loss - middle) * (loss - middle);
    freedom += losses.empty() ? 0 : static_cast<double>(losses.size() - 1);
    (is_own ? own_lost : fp32_lost) += static_cast<double>(block - losses.size());
    difference += sign * worse * middle / 4;
    scale += is_own ? 0 : std::abs(middle) / 4;
  }
  const double variance = freedom > 0 ? squares / freedom : 0, batches = 4 * static_cast<double>(block);
  scale = std::max({scale, std::sqrt(variance), std::numeric_limits<double>::min()});
  // Lost batches are counted, and a count varies as Poisson's does.
  const double chance = (own_lost + fp32_lost) / (batches * batches);
  return {difference / scale + (own_lost - fp32_lost) / batches, 2 * variance / batches / (scale * scale) + chance};
}

/// Judges all rounds so far. `last`: no further round follows, so the answer is accepted or rejected. The line is then
/// the tolerance, or what noise alone exceeds one time in seven. Where that is more than 5%, the batches have shown
/// nothing, and the plan is rejected.
/// Requires: losses of a round or more.
inline loss_verdict judge_turns(const std::vector<double>& fp32, const std::vector<double>& own, std::size_t block,
                                double tolerance, double worse, bool last) {
  constexpr double sure = 2.4, one_in_seven = 1.1, vague = 0.05;
  const std::size_t rounds = std::min(fp32.size(), own.size()) / (block * order_of_turns.size() / 2);
  std::vector<double> differences, variances;
  for (std::size_t k = 0; k < rounds; ++k) {
    const round_of_turns round = look_at_round(fp32, own, k, block, worse);
    differences.push_back(round.difference);
    variances.push_back(round.variance);
  }
  const double count = static_cast<double>(rounds), difference = mean_of(differences);
  double squares = 0;
  for (const double d : differences) squares += (d - difference) * (d - difference);
  double error = std::sqrt(mean_of(variances) / count);
  if (rounds >= 3) error = std::max(error, std::sqrt(squares / (count - 1) / count));
  loss_verdict got{.difference = difference, .radius = sure * error, .line = tolerance};
  if (difference - got.radius > tolerance) {
    got.answer = loss_answer::rejected;
  } else if (difference + got.radius < tolerance) {
    got.answer = loss_answer::accepted;
  } else if (last) {
    got.line = std::max(tolerance, one_in_seven * error);
    const bool shown = got.line <= std::max(tolerance, vague);
    got.answer = shown && difference < got.line ? loss_answer::accepted : loss_answer::rejected;
  }
  return got;
}

}  // namespace detail

/// Trains FP32 and `p` in turns until `decided(own, fp32)` is true, which is asked after each round. A batch that fails
/// ends it; `own` or `fp32` has then the status of the failure.
template <class Decided>
void train_in_turns(evaluator& run, const trial& begun, const plan& p, const turn_lengths& lengths, sample& own,
                    sample& fp32, Decided decided) {
  for (std::size_t round = 0; round < lengths.rounds; ++round) {
    for (const bool is_own : order_of_turns) {
      sample& to = is_own ? own : fp32;
      const std::size_t until = static_cast<std::size_t>(to.batches) + lengths.block;
      run.train(begun, is_own ? p : run.fp32(), until, to, detail::finite_status);
      if (!to.ok() || static_cast<std::size_t>(to.batches) < until) return;
    }
    if (decided(own, fp32)) return;
  }
}

}  // namespace comp
