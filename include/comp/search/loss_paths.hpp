// SPDX-License-Identifier: Apache-2.0
// What a training's losses look like beside FP32's: differences per batch as a path, and when such a path says little
// by itself, so that it has to be repeated. Not here: the test of one path (loss_test.hpp) and who runs what
// (trials.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/loss_test.hpp>
#include <cstddef>
#include <span>
#include <vector>

namespace comp {

/// `own` - `fp32` of each batch that both have, as parts of FP32's mean |loss|; above 0 is worse. `worse`: -1 for
/// losses that are maximised.
inline std::vector<double> loss_path(std::span<const double> fp32, std::span<const double> own, double worse) {
  const std::size_t n = std::min(fp32.size(), own.size());
  std::vector<double> path(n);
  double size = 0;
  for (std::size_t i = 0; i < n; ++i) {
    path[i] = worse * (own[i] - fp32[i]);
    size += std::abs(fp32[i]) / static_cast<double>(n);
  }
  if (size > 0) {
    for (double& d : path) d /= size;
  }
  return path;
}

inline double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

/// Whether FP32 with perturbed roundings strays from FP32 by anything near the tolerance: in means of four batches,
/// which leave out what changes from batch to batch.
inline bool strays(std::span<const double> path, double tolerance) {
  double squares = 0;
  const std::size_t fours = path.size() / 4;
  for (std::size_t block = 0; block < fours; ++block) {
    const double mean = mean_of(path.subspan(4 * block, 4));
    squares += mean * mean / static_cast<double>(fours);
  }
  return std::sqrt(squares) > 0.4 * tolerance;
}

/// Whether a path leads away step by step, as two trainings do that roundings drive apart: neighbours are alike, and
/// their steps lead away by the tolerance within so many batches. Its mean then says little.
/// Source: von Neumann 1941 (mean square successive difference).
inline bool wanders(std::span<const double> path, double tolerance) {
  if (path.size() < 8) return false;
  const double mean = mean_of(path), n = static_cast<double>(path.size());
  double steps = 0, squares = 0, before = path.front();
  for (const double d : path) {
    squares += (d - mean) * (d - mean);
    steps += (d - before) * (d - before);
    before = d;
  }
  return steps < squares && std::sqrt(steps / (n - 1) * n / 3) > tolerance;
}

/// How far off FP32's a loss must be for nobody to doubt: far above what FP32 does to itself, where that was `seen`.
inline double doubtless(std::span<const std::vector<double>> seen, double tolerance) {
  double own = 0;
  for (const auto& path : seen) {
    for (const double d : path) own = std::max(own, std::abs(d));
  }
  return seen.empty() ? 25 * tolerance : 4 * own + 2 * tolerance;
}

/// Harm beyond doubt: each of at least four batches is far off, or, where FP32 was seen, the later half on average.
inline bool beyond_doubt(std::span<const double> path, std::span<const std::vector<double>> seen, double tolerance) {
  if (path.size() < 4) return false;
  const double far = doubtless(seen, tolerance);
  if (std::all_of(path.begin(), path.end(), [far](double d) { return !(d <= far); })) return true;
  return !seen.empty() && path.size() >= 8 && !(mean_of(path.last(path.size() / 2)) <= far);
}

/// What repeats say, each a mean difference of a pair of trainings with their own perturbed roundings: Student's t.
/// `last`: no further pair will come; then harm must stand out of the error of the mean by itself.
inline loss_verdict judge_repeats(std::span<const double> differences, double tolerance, bool last) {
  const auto k = static_cast<double>(differences.size());
  const double mean = mean_of(differences);
  double squares = 0;
  for (const double d : differences) squares += (d - mean) * (d - mean);
  const double error = k > 1 ? std::sqrt(squares / (k - 1) / k) : 0;
  loss_verdict got{.difference = mean, .radius = 2 * error, .line = tolerance};
  if (k >= 4) {
    const double sure = error * detail::student_t(2.4, k - 1);
    if (mean - sure > tolerance) got.answer = loss_answer::rejected;
    if (mean + sure < tolerance || mean + error / 2 < 0) got.answer = loss_answer::accepted;
  }
  if (last && got.answer == loss_answer::go_on) {
    got.line = std::max(tolerance, got.radius);
    got.answer = mean < got.line ? loss_answer::accepted : loss_answer::rejected;
  }
  return got;
}

}  // namespace comp
