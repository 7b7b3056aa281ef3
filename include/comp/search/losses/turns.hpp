// SPDX-License-Identifier: Apache-2.0
// Judges a plan on a trainer that cannot restore its state. FP32 and the plan take turns on the batches that follow, in
// blocks, and the difference of their losses is attributed to the plan.
// The loss falls meanwhile. In the order FPPF PFFP (F: FP32, P: plan; the Thue-Morse sequence) a linear or quadratic
// trend cancels. A block is long enough to show harm that builds up within some batches. All batches are training, so
// that judging only costs the time by which FP32 is slower.
// Source: Prouhet 1851 (the order, for polynomials of any degree).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace comp {

/// For each block of a round: true if the plan trains it, false for FP32.
inline constexpr std::array<bool, 8> order_of_turns{false, true, true, false, true, false, false, true};

/// How long FP32 and the plan take turns.
struct turn_lengths {
  std::size_t block = 16, rounds = 8;  // batches of a block; rounds at most

  /// Returns: lengths that together are a twentieth of the training, within 64 to 1024. `planned`: the training's
  /// batches; 0: not known.
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

/// Returns: what round `number` says. `candidate`, `fp32`: all losses so far, those of that round included.
/// `loss_sign`: 1 if a larger loss is worse, else -1. A batch whose loss is not finite counts as a loss of the whole
/// scale.
inline round_of_turns compare_round(const std::vector<double>& fp32, const std::vector<double>& candidate,
                                    std::size_t number, std::size_t block, double loss_sign) {
  const std::size_t start = number * block * order_of_turns.size() / 2;
  std::size_t at[2] = {start, start};
  double difference = 0, scale = 0, squares = 0, freedom = 0, candidate_lost = 0, fp32_lost = 0;
  for (const bool is_candidate : order_of_turns) {
    const double sign = is_candidate ? 1 : -1;
    const std::vector<double> losses =
        finite_of(std::span{is_candidate ? candidate : fp32}.subspan(at[is_candidate], block));
    at[is_candidate] += block;
    const double middle = mean_of(losses);
    for (const double loss : losses) squares += (loss - middle) * (loss - middle);
    freedom += losses.empty() ? 0 : static_cast<double>(losses.size() - 1);
    (is_candidate ? candidate_lost : fp32_lost) += static_cast<double>(block - losses.size());
    difference += sign * loss_sign * middle / 4;
    scale += is_candidate ? 0 : std::abs(middle) / 4;
  }
  const double variance = freedom > 0 ? squares / freedom : 0, batches = 4 * static_cast<double>(block);
  scale = std::max({scale, std::sqrt(variance), std::numeric_limits<double>::min()});
  // Lost batches are counted, and a count varies as Poisson's does.
  const double chance = (candidate_lost + fp32_lost) / (batches * batches);
  return {difference / scale + (candidate_lost - fp32_lost) / batches,
          2 * variance / batches / (scale * scale) + chance};
}

/// Judges all rounds so far. `last`: no further round follows, so the answer is accepted or rejected. The line is then
/// the tolerance, or what noise alone exceeds one time in seven. If that is more than 5%, the batches have shown
/// nothing, and the plan is rejected.
/// Requires: losses of a round or more.
inline loss_verdict judge_turns(const std::vector<double>& fp32, const std::vector<double>& candidate,
                                std::size_t block, double tolerance, double loss_sign, bool last) {
  constexpr double clear_errors = 2.4, one_in_seven = 1.1, vague = 0.05;
  const std::size_t rounds = std::min(fp32.size(), candidate.size()) / (block * order_of_turns.size() / 2);
  std::vector<double> differences, variances;
  for (std::size_t k = 0; k < rounds; ++k) {
    const round_of_turns round = compare_round(fp32, candidate, k, block, loss_sign);
    differences.push_back(round.difference);
    variances.push_back(round.variance);
  }
  const double count = static_cast<double>(rounds), difference = mean_of(differences);
  double squares = 0;
  for (const double d : differences) squares += (d - difference) * (d - difference);
  double error = std::sqrt(mean_of(variances) / count);
  if (rounds >= 3) error = std::max(error, std::sqrt(squares / (count - 1) / count));
  loss_verdict verdict{.difference = difference, .radius = clear_errors * error, .line = tolerance};
  if (difference - verdict.radius > tolerance) {
    verdict.answer = loss_answer::rejected;
  } else if (difference + verdict.radius < tolerance) {
    verdict.answer = loss_answer::accepted;
  } else if (last) {
    verdict.line = std::max(tolerance, one_in_seven * error);
    const bool shown = verdict.line <= std::max(tolerance, vague);
    verdict.answer = shown && difference < verdict.line ? loss_answer::accepted : loss_answer::rejected;
  }
  return verdict;
}

}  // namespace detail

/// Trains `reference` and `p` in turns until `is_decided(candidate, other)` is true, which is asked after each round. A
/// batch that fails ends it; `candidate` or `other` has then the status of the failure.
void train_in_turns(evaluator& run, const trial& begun, const plan& p, const plan& reference,
                    const turn_lengths& lengths, sample& candidate, sample& other, auto is_decided) {
  for (std::size_t round = 0; round < lengths.rounds; ++round) {
    for (const bool is_candidate : order_of_turns) {
      sample& side = is_candidate ? candidate : other;
      const std::size_t until = static_cast<std::size_t>(side.batches) + lengths.block;
      run.train(begun, is_candidate ? p : reference, until, side, detail::cut_if_not_finite);
      if (!side.ok() || static_cast<std::size_t>(side.batches) < until) return;
    }
    if (is_decided(candidate, other)) return;
  }
}

}  // namespace comp
