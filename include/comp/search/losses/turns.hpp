// SPDX-License-Identifier: Apache-2.0
// Judges a plan on a trainer that cannot restore its state. FP32 and the plan take turns on the batches that follow, in
// blocks, and the difference of their losses is attributed to the plan.
// The loss falls meanwhile. In the order FPPF PFFP (F: FP32, P: plan; the Thue-Morse sequence) a linear or quadratic
// trend cancels. A block is long enough to show harm that builds up within some batches. All batches are training, so
// that judging only costs the time by which FP32 is slower. Its blocks are therefore a third as long as the plan's: the
// difference is then known as well from 2/3 as many of FP32's batches. A plan whose harm is beyond doubt does not train
// such a block to its end.
// Source: Prouhet 1851 (the order, for polynomials of any degree).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace comp {

/// For each block of a round: true if the plan trains it, false for FP32.
inline constexpr std::array<bool, 8> order_of_turns{false, true, true, false, true, false, false, true};

/// How long a reference and the plan take turns.
struct turn_lengths {
  std::size_t reference = 16, candidate = 16, rounds = 8;  // batches of a block of each; rounds at most

  /// Returns: lengths that together are a twentieth of the training, within 64 to 1024. `planned`: the training's
  /// batches; 0: not known. `beside_fp32`: no plan was accepted yet, so that FP32's batches are the slow ones.
  static turn_lengths of_training(std::size_t planned, bool beside_fp32) {
    const std::size_t most = planned > 0 ? std::clamp<std::size_t>(planned / 20, 64, 1024) : 1024;
    const std::size_t block = std::clamp<std::size_t>(most / (beside_fp32 ? 64 : 32), 4, 16);
    const turn_lengths one{block, beside_fp32 ? 3 * block : block, 1};
    return {one.reference, one.candidate, std::max<std::size_t>(most / one.batches(), 1)};
  }
  /// Returns: the batches of all rounds.
  std::size_t batches() const { return rounds * order_of_turns.size() / 2 * (reference + candidate); }
};

namespace detail {

/// What the losses of one round say: the plan's mean less FP32's and the variance of that, both relative to FP32's
/// loss.
struct round_of_turns {
  double difference = 0, variance = 0;
};

/// Returns: what round `number` says. `candidate`, `reference`: all losses so far, those of that round included.
/// `loss_sign`: 1 if a larger loss is worse, else -1. A batch whose loss is not finite counts as a loss of the whole
/// scale.
inline round_of_turns compare_round(const std::vector<double>& reference, const std::vector<double>& candidate,
                                    std::size_t number, const turn_lengths& lengths, double loss_sign) {
  const std::size_t block[2] = {lengths.reference, lengths.candidate}, half = order_of_turns.size() / 2;
  std::size_t at[2] = {number * half * block[0], number * half * block[1]};
  const double r = static_cast<double>(block[0]), c = static_cast<double>(block[1]);
  // The weights of FPPF and of PFFP by which a quadratic trend cancels although FP32's blocks are shorter: 1/2
  // each for blocks of the same length.
  const double weights[2] = {(c + 2 * r) / (c + r) / 3, (2 * c + r) / (c + r) / 3};
  double difference = 0, scale = 0, squares = 0, freedom = 0, lost[2] = {};
  for (std::size_t turn = 0; turn < order_of_turns.size(); ++turn) {
    const bool is_candidate = order_of_turns[turn];
    const std::vector<double> losses =
        finite_of(std::span{is_candidate ? candidate : reference}.subspan(at[is_candidate], block[is_candidate]));
    at[is_candidate] += block[is_candidate];
    const double middle = mean_of(losses);
    for (const double loss : losses) squares += (loss - middle) * (loss - middle);
    freedom += losses.empty() ? 0 : static_cast<double>(losses.size() - 1);
    lost[is_candidate] += static_cast<double>(block[is_candidate] - losses.size());
    difference += (is_candidate ? loss_sign : -loss_sign) * weights[turn / half] * middle / 2;
    scale += is_candidate ? 0 : std::abs(middle) / 4;
  }
  const double variance = freedom > 0 ? squares / freedom : 0, of_reference = 4 * r, of_candidate = 4 * c;
  scale = std::max({scale, std::sqrt(variance), std::numeric_limits<double>::min()});
  const double spread = 2 * (weights[0] * weights[0] + weights[1] * weights[1]) * variance / (scale * scale);
  // Lost batches are counted, and a count varies as Poisson's does.
  const double chance = lost[1] / (of_candidate * of_candidate) + lost[0] / (of_reference * of_reference);
  return {difference / scale + lost[1] / of_candidate - lost[0] / of_reference,
          spread * (1 / of_reference + 1 / of_candidate) + chance};
}

/// Returns: the harm that the begun round `number` shows beyond doubt; none if there is doubt. It is beyond doubt if
/// the plan's mean is above each of the reference's losses, and a polynomial whose degree is the number of the plan's
/// blocks does not explain that.
inline harm_estimate clear_harm_in_round(const std::vector<double>& reference, const std::vector<double>& candidate,
                                         std::size_t number, const turn_lengths& lengths, double tolerance,
                                         double loss_sign) {
  constexpr double errors = 4;
  const std::size_t half = order_of_turns.size() / 2;
  const std::span<const double> all[2] = {reference, candidate};
  std::size_t at[2] = {number * half * lengths.reference, number * half * lengths.candidate};
  std::vector<double> losses, is_candidates, of_candidate;
  double highest = -std::numeric_limits<double>::infinity();
  std::size_t degree = 0;
  for (const bool is_candidate : order_of_turns) {
    degree += is_candidate ? 1 : 0;
    const std::size_t block = is_candidate ? lengths.candidate : lengths.reference, end = at[is_candidate] + block;
    for (std::size_t& k = at[is_candidate]; k < std::min(end, all[is_candidate].size()); ++k) {
      losses.push_back(loss_sign * all[is_candidate][k]);
      is_candidates.push_back(is_candidate ? 1 : 0);
      if (is_candidate) of_candidate.push_back(losses.back());
      if (!is_candidate && losses.back() > highest) highest = losses.back();
    }
    if (at[is_candidate] < end) break;
  }
  const harm_estimate fit = fit_harm(losses, is_candidates, degree);
  const bool is_above = mean_of(finite_of(of_candidate)) > highest;
  return is_above && fit.harm - errors * fit.error > tolerance ? fit : harm_estimate{};
}

/// Judges all rounds so far, and a begun one by what is beyond doubt. `last`: no further batch follows, so the answer
/// is accepted or rejected. The line is then the tolerance, or what noise alone exceeds one time in seven. If that is
/// more than 5%, the batches have shown nothing, and the plan is rejected.
inline loss_verdict judge_turns(const std::vector<double>& reference, const std::vector<double>& candidate,
                                const turn_lengths& lengths, double tolerance, double loss_sign, bool last) {
  constexpr double clear_errors = 2.4, one_in_seven = 1.1, vague = 0.05;
  const std::size_t rounds = std::min(reference.size() / lengths.reference, candidate.size() / lengths.candidate) /
                             (order_of_turns.size() / 2);
  const harm_estimate begun = clear_harm_in_round(reference, candidate, rounds, lengths, tolerance, loss_sign);
  if (begun.harm > 0 || (rounds == 0 && last))
    return {.answer = loss_answer::rejected, .difference = begun.harm, .radius = begun.error, .line = tolerance};
  if (rounds == 0) return {};
  std::vector<double> differences, variances;
  for (std::size_t k = 0; k < rounds; ++k) {
    const round_of_turns round = compare_round(reference, candidate, k, lengths, loss_sign);
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

/// Trains `reference` and `p` in turns until `is_decided(candidate, other)` is true, which is asked after each block of
/// the plan, and after 16 batches within one. A batch that fails ends it; `candidate` or `other` has then the status of
/// the failure.
void train_in_turns(evaluator& run, const trial& begun, const plan& p, const plan& reference,
                    const turn_lengths& lengths, sample& candidate, sample& other, auto is_decided) {
  constexpr std::int64_t until_asked = 16;
  for (std::size_t round = 0; round < lengths.rounds; ++round) {
    for (const bool is_candidate : order_of_turns) {
      sample& side = is_candidate ? candidate : other;
      const std::int64_t from = side.batches;
      const auto until = from + static_cast<std::int64_t>(is_candidate ? lengths.candidate : lengths.reference);
      bool decided = false;
      const auto look = [&](const sample& so_far) {
        const status now = detail::cut_if_not_finite(so_far);
        const bool asks = is_candidate && ((so_far.batches - from) % until_asked == 0 || so_far.batches == until);
        decided = asks && now == status::ok && is_decided(candidate, other);
        return decided ? status::stopped_early : now;
      };
      run.train(begun, is_candidate ? p : reference, static_cast<std::size_t>(until), side, look);
      if (decided) side.status = status::ok;  // an answer is no failure of the run
      if (decided || !side.ok() || side.batches < until) return;
    }
  }
}

}  // namespace comp
