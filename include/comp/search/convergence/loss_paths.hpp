// SPDX-License-Identifier: Apache-2.0
// Compares a training's losses with FP32's as a path of differences per batch, and tells when one such path shows too
// little, so that the trainings have to be repeated.
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

/// Returns: `candidate` - `fp32` of each batch that both have, as a fraction of the scale of FP32's losses; above 0 is
/// worse. `loss_sign`: -1 for losses that are maximised, else 1.
inline std::vector<double> loss_path(std::span<const double> fp32, std::span<const double> candidate,
                                     double loss_sign) {
  const std::size_t n = std::min(fp32.size(), candidate.size());
  std::vector<double> a{candidate.begin(), candidate.begin() + static_cast<std::ptrdiff_t>(n)},
      b{fp32.begin(), fp32.begin() + static_cast<std::ptrdiff_t>(n)};
  for (auto* losses : {&a, &b}) {
    for (double& loss : *losses) loss *= loss_sign;
  }
  return detail::differences(a, b, detail::loss_scale(b));
}

/// Returns: true if FP32 with perturbed roundings differs from FP32 by an amount near the tolerance. Means of four
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

/// Returns: true if a path is a random walk, like that of two trainings that roundings drive apart: neighbours are
/// alike, and over the path their steps add up to more than the tolerance. The mean of such a path says little.
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

/// Returns: how many batches of a path are as near to FP32 as roundings leave them: within `line`, or three times as
/// far away as FP32 with perturbed roundings (`fp32_paths`) has come by then. That may get there a batch later, since
/// such differences grow by a factor each batch; but not in the first batch, which has no step behind it.
inline std::size_t batches_near_fp32(std::span<const double> path, std::span<const std::vector<double>> fp32_paths,
                                     double line) {
  double far = 0, of_fp32 = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    far = std::max(far, std::abs(path[i]));
    for (const auto& fp32 : fp32_paths) {
      for (const double d : std::span{fp32}.first(std::min(i == 0 ? 1 : i + 2, fp32.size())))
        of_fp32 = std::max(of_fp32, std::abs(d));
    }
    if (far > std::max(line, 3 * of_fp32)) return i;
  }
  return path.size();
}

/// Returns: how far each loss of `batches` batches has to be above FP32's for harm to be beyond doubt:
/// 4 max(|fp32_paths|) + 2 tolerance; without `fp32_paths` 10 tolerance, or 25 tolerance for fewer than 8 batches. In
/// so few batches, roundings do not drive trainings apart.
inline double blatant_difference(std::span<const std::vector<double>> fp32_paths, double tolerance,
                                 std::size_t batches) {
  double farthest = 0;
  for (const auto& path : fp32_paths) {
    for (const double d : path) farthest = std::max(farthest, std::abs(d));
  }
  return fp32_paths.empty() ? (batches < 8 ? 25 : 10) * tolerance : 4 * farthest + 2 * tolerance;
}

/// Returns: true if harm is beyond doubt: each of at least four batches is far above FP32's; or, if FP32's own
/// differences `fp32_paths` are known, the mean of the later half is.
inline bool beyond_doubt(std::span<const double> path, std::span<const std::vector<double>> fp32_paths,
                         double tolerance) {
  if (path.size() < 4) return false;
  const double far = blatant_difference(fp32_paths, tolerance, path.size());
  if (std::all_of(path.begin(), path.end(), [far](double d) { return !(d <= far); })) return true;
  return !fp32_paths.empty() && path.size() >= 8 && !(mean_of(path.last(path.size() / 2)) <= far);
}

/// Judges repeats by Student's t. Each of `differences` is the mean difference of a pair of trainings, both with
/// perturbed roundings of their own. `last`: no further pair will come, so an open question is decided: the plan is
/// rejected if the mean is above both the tolerance and twice its standard error.
inline loss_verdict judge_repeats(std::span<const double> differences, double tolerance, bool last) {
  const auto pairs = static_cast<double>(differences.size());
  const double estimate = mean_of(differences);
  double squares = 0;
  for (const double d : differences) squares += (d - estimate) * (d - estimate);
  const double error = pairs > 1 ? std::sqrt(squares / (pairs - 1) / pairs) : 0;
  loss_verdict verdict{.difference = estimate, .radius = 2 * error, .line = tolerance};
  if (pairs >= 4) {
    const double margin = error * detail::student_t(2.4, pairs - 1);
    if (estimate - margin > tolerance) verdict.answer = loss_answer::rejected;
    if (estimate + margin < tolerance || estimate + error / 2 < 0) verdict.answer = loss_answer::accepted;
  }
  if (last && verdict.answer == loss_answer::go_on) {
    verdict.line = std::max(tolerance, verdict.radius);
    verdict.answer = estimate < verdict.line ? loss_answer::accepted : loss_answer::rejected;
  }
  return verdict;
}

}  // namespace comp
