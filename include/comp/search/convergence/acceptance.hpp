// SPDX-License-Identifier: Apache-2.0
// Tells whether a candidate's epoch is as good as FP32's, by the paper's rule loss_i < loss_0 * 101%. The rule is
// extended to negative losses, trainers with several losses, and losses that are maximised.
// Source: CoMP paper, section 3.2 and algorithm 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/sample.hpp>
#include <cstdint>
#include <limits>

namespace comp {

/// Returns: the loss that a candidate must stay under, loss_0 + tolerance |loss_0|. The absolute value keeps the line
/// above a negative loss.
inline double acceptance_line(double fp32_loss, double tolerance) {
  return fp32_loss + tolerance * std::abs(fp32_loss);
}

/// Returns: true if all three hold: `candidate` ended well; each of its losses is below acceptance_line() of FP32's or
/// no worse than FP32's; its share of batches whose loss is not finite exceeds FP32's by at most `tolerance`.
/// `higher_is_better`: losses are maximised.
inline bool accepted(const sample& fp32, const sample& candidate, double tolerance = 0.01,
                     bool higher_is_better = false) {
  if (!candidate.ok() || candidate.losses.size() != fp32.losses.size()) return false;
  const auto lost_share = [](const sample& s) {
    return static_cast<double>(s.not_finite) / static_cast<double>(std::max<std::int64_t>(s.batches, 1));
  };
  if (lost_share(candidate) > lost_share(fp32) + tolerance) return false;
  const auto passes = [=](double base, double loss) {
    if (higher_is_better) base = -base, loss = -loss;
    return loss <= base || loss < acceptance_line(base, tolerance);  // false for NaN on either side
  };
  const auto mean_is_unknown = [](const sample& s, std::size_t i) {
    return s.not_finite > 0 && !std::isfinite(s.losses[i]);
  };
  for (std::size_t i = 0; i < candidate.losses.size(); ++i) {
    if (mean_is_unknown(fp32, i) || mean_is_unknown(candidate, i))
      continue;  // one lost batch makes a mean unknown, and says nothing else
    if (!passes(fp32.losses[i], candidate.losses[i])) return false;
  }
  return passes(fp32.loss, candidate.loss);
}

/// Returns: by how much the score of `candidate` is below FP32's, as a fraction of FP32's; NaN if one of them has no
/// score.
inline double score_lost(const sample& fp32, const sample& candidate) {
  if (!fp32.score || !candidate.score) return std::numeric_limits<double>::quiet_NaN();
  const double lost = *fp32.score - *candidate.score;
  return *fp32.score == 0 ? lost : lost / std::abs(*fp32.score);
}

}  // namespace comp
