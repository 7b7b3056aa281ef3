// SPDX-License-Identifier: Apache-2.0
// Tells from few batches whether a plan does harm that grows over hundreds of them, by comparing its losses with those
// of FP32 on the same batches from the same state.
// The noise of the data is in both losses and cancels. Two things are left: one training wanders from the next, by an
// amount that is estimated from the differences themselves; and there may be a drift, which is harm. The likelihood
// ratio of "drifts" to "does not drift" is looked at after every few batches, so that a harmless plan costs no more of
// them than its answer takes.
// Not here: who runs FP32 and when (fp32_shadow.hpp, guarded_training.hpp), and harm that shows within the few batches
// of a search (loss_test.hpp).
// Source: Wald 1945 (sequential probability ratio test); Allan 1966 (noise by the scale at which it is looked at).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/search/convergence/loss_test.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace comp::detail {

enum class shadow_answer : std::uint8_t { go_on, suspicious, harmless, harmful };

/// The mean of the last third of a path that began at 0, and the standard error that wandering alone would give it.
struct path_end {
  double mean = 0, error = std::numeric_limits<double>::infinity();
};

/// Returns: the variance of a step of the path if it were a random walk, estimated from the steps between means of
/// `block` batches after a straight line is subtracted. For blocks of two batches or more it is raised by a standard
/// error, because few blocks may look quiet by chance.
inline double walk_variance(std::span<const double> path, std::size_t block) {
  std::vector<double> steps;
  for (std::size_t at = 0; at + 2 * block <= path.size(); at += block) {
    steps.push_back(mean_of(path.subspan(at + block, block)) - mean_of(path.subspan(at, block)));
  }
  const double mean = mean_of(steps), count = static_cast<double>(steps.size()), b = static_cast<double>(block);
  double squares = 0;
  for (const double step : steps) squares += (step - mean) * (step - mean);
  const double margin = block > 1 ? 1 + std::sqrt(2 / count) : 1;
  return margin * squares / (count - 1) * 3 * b / (2 * b * b + 1);
}

/// Estimates the end of a path. Noise of single batches averages out in blocks, while a walk looks the same at every
/// scale; so the least variance over all scales is taken. Returns: an infinite error for fewer than 4 batches.
inline path_end end_of_path(std::span<const double> path) {
  const std::size_t n = path.size();
  if (n < 4) return {};
  double walk = std::numeric_limits<double>::infinity(), batch = 0;
  for (std::size_t block = 1; block == 1 || 8 * block <= n; block *= 2) {
    walk = std::min(walk, walk_variance(path, block));
    if (block == 1) batch = walk;
  }
  const double count = static_cast<double>(n);
  return {mean_of(path.last(n / 3)), std::sqrt(walk * count * 7 / 9 + 1.5 * batch / count)};
}

/// Returns: plan - FP32 of each batch that has a finite loss in both; lower is better. Differences are relative to the
/// scale of FP32's losses; or to the batch's own loss, if FP32's losses are all positive and that path is quieter,
/// because harm in a batch is often proportional to its loss.
inline std::vector<double> paired_differences(std::span<const double> plan, std::span<const double> fp32) {
  std::vector<double> plan_losses, fp32_losses;
  for (std::size_t i = 0; i < std::min(plan.size(), fp32.size()); ++i) {
    if (!std::isfinite(plan[i]) || !std::isfinite(fp32[i])) continue;
    plan_losses.push_back(plan[i]);
    fp32_losses.push_back(fp32[i]);
  }
  if (fp32_losses.empty()) return {};
  std::vector<double> path = differences(plan_losses, fp32_losses, loss_scale(fp32_losses));
  if (*std::min_element(fp32_losses.begin(), fp32_losses.end()) <= 0) return path;
  std::vector<double> relative_path(fp32_losses.size());
  for (std::size_t i = 0; i < fp32_losses.size(); ++i)
    relative_path[i] = std::clamp(plan_losses[i] / fp32_losses[i] - 1, -10.0, 10.0);
  return end_of_path(relative_path).error < end_of_path(path).error ? relative_path : path;
}

/// No path of fewer batches is judged.
inline constexpr std::size_t first_look = 8;

/// FP32 itself wanders by fewer standard errors than this.
inline constexpr double beyond_wandering = 2.7;

/// The question that FP32's training next to a plan is to answer.
struct shadow_question {
  double line = 0.01;    // harm is a difference above this fraction of the loss
  double drift = 3e-4;   // the fraction of the loss by which harm is thought to grow per batch
  double missed = 0.05;  // the chance that a plan with such a drift is taken for harmless
  double known = 0;      // logarithm of the likelihood ratio that earlier batches gave
};

/// Returns: the question for a plan's first batches: harm that would reach three times the tolerance within a hundred
/// batches.
inline shadow_question shadow_of_beginning(double tolerance, double known) {
  return {.line = tolerance, .drift = 0.03 * tolerance, .known = known};
}
/// Returns: the question for a check in an epoch of `batches` batches: is FP32 better by twice `worse` at its end?
inline shadow_question shadow_of_audit(double worse, std::size_t batches) {
  return {.line = worse, .drift = 2 * worse / static_cast<double>(batches)};
}

/// Returns: the logarithm of how much likelier the path is with the drift than without one.
inline double drift_likelihood(const shadow_question& question, std::span<const double> path) {
  if (path.size() < 4) return question.known;
  const path_end end = end_of_path(path);
  const double expected = question.drift * 5 / 6 * static_cast<double>(path.size());
  // At least this, for losses that repeat themselves to the bit.
  const double error = std::max(end.error, 1e-3 * question.line);
  return question.known + (end.mean * expected - expected * expected / 2) / (error * error);
}

/// Returns: true if `batches` batches could tell the drift from wandering.
inline bool could_tell(const shadow_question& question, std::span<const double> path, double batches) {
  const double error = end_of_path(path).error * std::sqrt(batches / static_cast<double>(path.size()));
  return question.drift * 5 / 6 * batches > 1.4 * error;
}

/// Judges a path. It is harmful if it ends above the line by more than FP32 itself wanders; suspicious if more batches
/// are worth their time.
inline shadow_answer judge_shadow(const shadow_question& question, std::span<const double> path) {
  constexpr double suspicious = 1;
  if (path.size() < first_look) return shadow_answer::go_on;
  const path_end end = end_of_path(path);
  if (path.size() >= 16 && end.mean > question.line && end.mean > beyond_wandering * end.error)
    return shadow_answer::harmful;
  const double likely = drift_likelihood(question, path);
  if (likely < std::log(question.missed)) return shadow_answer::harmless;
  return likely > suspicious ? shadow_answer::suspicious : shadow_answer::go_on;
}

}  // namespace comp::detail
