// SPDX-License-Identifier: Apache-2.0
// Compares a training's losses with FP32's as a path of differences per batch, and tells when such a path says so
// little by itself that it has to be repeated.
// Not here: the test of one path (loss_test.hpp), and who runs what (loss_trials.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/search/convergence/loss_test.hpp>
#include <cstddef>
#include <span>
#include <vector>

namespace comp {

/// Returns: own - fp32 of each batch that both have, as a part of the scale of FP32's losses; above 0 is worse.
/// `worse`: -1 for losses that are maximised, else 1.
inline std::vector<double> loss_path(std::span<const double> fp32, std::span<const double> own, double worse) {
  const std::size_t n = std::min(fp32.size(), own.size());
  std::vector<double> a{own.begin(), own.begin() + static_cast<std::ptrdiff_t>(n)},
      b{fp32.begin(), fp32.begin() + static_cast<std::ptrdiff_t>(n)};
  for (auto* losses : {&a, &b}) {
    for (double& loss : *losses) loss *= worse;
  }
  return detail::differences(a, b, detail::loss_scale(b));
}

/// Returns: true where FP32 with perturbed roundings strays from FP32 by an amount near the tolerance. Means of four
/// batches are compared, because single batches differ too much.
inline bool strays(std::span<const double> path, double tolerance) {
  double squares = 0;
  const std::size_t fours = path.size() / 4;
  for (std::size_t block = 0; block < fours; ++block) {
    const double middle = mean_of(path.subspan(4 * block, 4));
    squares += middle * middle / static_cast<double>(fours);
  }
  return std::sqrt(squares) > 0.4 * tolerance;
}

/// Returns: true where a path leads away step by step, as those of two trainings do that roundings drive apart:
/// neighbours are alike, and their steps add up to more than the tolerance within so many batches. The mean of such a
/// path says little.
/// Source: von Neumann 1941 (mean square successive difference).
inline bool wanders(std::span<const double> path, double tolerance) {
  if (path.size() < 8) return false;
  const double middle = mean_of(path), n = static_cast<double>(path.size());
  double steps = 0, squares = 0, before = path.front();
  for (const double d : path) {
    squares += (d - middle) * (d - middle);
    steps += (d - before) * (d - before);
    before = d;
  }
  return steps < squares && std::sqrt(steps / (n - 1) * n / 3) > tolerance;
}

/// Returns: how far the loss of each of so many `batches` has to be above FP32's for harm to be beyond doubt. Where
/// FP32's own differences were `seen`, it is far above those. Else it is a multiple of the tolerance, larger for fewer
/// than eight batches; roundings need longer than that to drive trainings apart.
inline double doubtless(std::span<const std::vector<double>> seen, double tolerance, std::size_t batches) {
  double own = 0;
  for (const auto& path : seen) {
    for (const double d : path) own = std::max(own, std::abs(d));
  }
  return seen.empty() ? (batches < 8 ? 25 : 10) * tolerance : 4 * own + 2 * tolerance;
}

/// Returns: true where harm is beyond doubt: each of at least four batches is far above FP32's; or, where FP32's own
/// differences were `seen`, the mean of the later half is.
inline bool beyond_doubt(std::span<const double> path, std::span<const std::vector<double>> seen, double tolerance) {
  if (path.size() < 4) return false;
  const double far = doubtless(seen, tolerance, path.size());
  if (std::all_of(path.begin(), path.end(), [far](double d) { return !(d <= far); })) return true;
  return !seen.empty() && path.size() >= 8 && !(mean_of(path.last(path.size() / 2)) <= far);
}

/// Judges repeats by Student's t. Each of `differences` is the mean difference of a pair of trainings, both with
/// perturbed roundings of their own. `last`: no further pair will come, so it has to decide; the plan is then rejected
/// only where the difference is above the tolerance and above the error of the mean.
inline loss_verdict judge_repeats(std::span<const double> differences, double tolerance, bool last) {
  const auto k = static_cast<double>(differences.size());
  const double estimate = mean_of(differences);
  double squares = 0;
  for (const double d : differences) squares += (d - estimate) * (d - estimate);
  const double error = k > 1 ? std::sqrt(squares / (k - 1) / k) : 0;
  loss_verdict got{.difference = estimate, .radius = 2 * error, .line = tolerance};
  if (k >= 4) {
    const double sure = error * detail::student_t(2.4, k - 1);
    if (estimate - sure > tolerance) got.answer = loss_answer::rejected;
    if (estimate + sure < tolerance || estimate + error / 2 < 0) got.answer = loss_answer::accepted;
  }
  if (last && got.answer == loss_answer::go_on) {
    got.line = std::max(tolerance, got.radius);
    got.answer = estimate < got.line ? loss_answer::accepted : loss_answer::rejected;
  }
  return got;
}

}  // namespace comp
