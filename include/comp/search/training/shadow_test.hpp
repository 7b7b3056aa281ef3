// SPDX-License-Identifier: Apache-2.0
// Tells from few batches whether a plan does harm that grows over hundreds of them, by its losses beside FP32's on the
// same batches from the same state. The noise of the data is in both and cancels. The differences contain two things:
// how far one training wanders from another, which is estimated from the differences themselves, and a drift, which is
// harm. After every few batches the likelihoods of "drifts" and "does not drift" are compared, so a harmless plan costs
// no more batches than its answer takes.
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

/// The mean of the last third of a path that began at 0, and the standard error that wandering alone gives it.
struct path_end {
  double mean = 0, error = std::numeric_limits<double>::infinity();
};

/// Returns: the variance of a step of the path, taken as a random walk. It is estimated from the steps between means of
/// `block` batches, after a straight line was taken out. Few blocks may look quiet by chance, so a standard error is
/// added.
inline double walk_variance(std::span<const double> path, std::size_t block) {
  std::vector<double> steps;
  for (std::size_t at = 0; at + 2 * block <= path.size(); at += block) {
    steps.push_back(mean_of(path.subspan(at + block, block)) - mean_of(path.subspan(at, block)));
  }
  const double mean = mean_of(steps), count = static_cast<double>(steps.size()), b = static_cast<double>(block);
  double squares = 0;
  for (const double step : steps) squares += (step - mean) * (step - mean);
  const double sure = block > 1 ? 1 + std::sqrt(2 / count) : 1;
  return sure * squares / (count - 1) * 3 * b / (2 * b * b + 1);
}

/// Noise of single batches averages out in blocks, while a walk looks the same at every scale. So the scale with the
/// least variance is taken. Returns: an infinite error for fewer than 4 batches.
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

/// plan - FP32 of each batch that both have a finite loss of, lower is better: as parts of the scale of FP32's, or, of
/// losses that are all positive, of the batch's own where that is the quieter path: harm in a batch is often a part of
/// its loss.
inline std::vector<double> paired_differences(std::span<const double> plan, std::span<const double> fp32) {
  std::vector<double> a, b;
  for (std::size_t i = 0; i < std::min(plan.size(), fp32.size()); ++i) {
    if (!std::isfinite(plan[i]) || !std::isfinite(fp32[i])) continue;
    a.push_back(plan[i]);
    b.push_back(fp32[i]);
  }
  if (b.empty()) return {};
  std::vector<double> path = differences(a, b, loss_scale(b));
  if (*std::min_element(b.begin(), b.end()) <= 0) return path;
  std::vector<double> parts(b.size());
  for (std::size_t i = 0; i < b.size(); ++i) parts[i] = std::clamp(a[i] / b[i] - 1, -10.0, 10.0);
  return end_of_path(parts).error < end_of_path(path).error ? parts : path;
}

/// How many batches a path has at least before it is judged.
inline constexpr std::size_t first_look = 8;

/// What is asked of the batches of a shadow.
struct shadow_question {
  double line = 0.01;    // of the loss: harm is what is above it
  double drift = 3e-4;   // of the loss, per batch, that harm is thought to grow by
  double missed = 0.05;  // chance that a plan that drifts so is taken for harmless
  double known = 0;      // logarithm of the likelihood ratio that earlier batches gave
};

/// Returns: the question about a plan's first batches: harm that would be three times the tolerance within a hundred of
/// them.
inline shadow_question shadow_of_beginning(double tolerance, double known) {
  return {.line = tolerance, .drift = 0.03 * tolerance, .known = known};
}
/// Returns: the question about an epoch of so many batches without progress: is FP32 better by twice `worse` at its
/// end?
inline shadow_question shadow_of_audit(double worse, std::size_t batches) {
  return {.line = worse, .drift = 2 * worse / static_cast<double>(batches)};
}

/// Returns: the logarithm of how much likelier the path is with the drift than without.
inline double drift_likelihood(const shadow_question& asked, std::span<const double> path) {
  if (path.size() < 4) return asked.known;
  const path_end end = end_of_path(path);
  const double expected = asked.drift * 5 / 6 * static_cast<double>(path.size());
  const double error = std::max(end.error, 1e-3 * asked.line);  // of losses that repeat themselves to the bit
  return asked.known + (end.mean * expected - expected * expected / 2) / (error * error);
}

/// Returns: true where so many batches could tell the drift from wandering.
inline bool could_tell(const shadow_question& asked, std::span<const double> path, double batches) {
  const double error = end_of_path(path).error * std::sqrt(batches / static_cast<double>(path.size()));
  return asked.drift * 5 / 6 * batches > 1.4 * error;
}

/// Harmful is what is above the line by more than FP32 itself wanders. Suspicious: more batches are worth their time.
inline shadow_answer judge_shadow(const shadow_question& asked, std::span<const double> path) {
  constexpr double beyond_wandering = 2.7, suspicious = 1;
  if (path.size() < first_look) return shadow_answer::go_on;
  const path_end end = end_of_path(path);
  if (path.size() >= 16 && end.mean > asked.line && end.mean > beyond_wandering * end.error)
    return shadow_answer::harmful;
  const double likely = drift_likelihood(asked, path);
  if (likely < std::log(asked.missed)) return shadow_answer::harmless;
  return likely > suspicious ? shadow_answer::suspicious : shadow_answer::go_on;
}

}  // namespace comp::detail
