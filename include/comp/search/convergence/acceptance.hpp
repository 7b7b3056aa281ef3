// SPDX-License-Identifier: Apache-2.0
// Whether a candidate's epoch is as good as FP32's: the paper's loss_i < loss_0 * 101%, right for negative losses and
// for trainers with several losses too; and the same of scores, where the higher one is better.
// Source: CoMP paper, section 3.2 and algorithm 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/sample.hpp>
#include <cstdint>
#include <limits>

namespace comp {

/// Returns: the loss that a candidate must stay under; loss_0 + tolerance |loss_0|.
inline double acceptance_line(double fp32_loss, double tolerance) {
  return fp32_loss + tolerance * std::abs(fp32_loss);
}

/// Returns: true when `got` ended well, each of its losses is under the line of FP32's, or no worse than FP32's, and it
/// lost no more batches than FP32 and a part of `tolerance` of them. `higher`: losses are maximised.
inline bool accepted(const sample& fp32, const sample& got, double tolerance = 0.01, bool higher = false) {
  if (!got.ok() || got.losses.size() != fp32.losses.size()) return false;
  const auto lost = [](const sample& s) {
    return static_cast<double>(s.not_finite) / static_cast<double>(std::max<std::int64_t>(s.batches, 1));
  };
  if (lost(got) > lost(fp32) + tolerance) return false;
  const auto passes = [=](double base, double loss) {
    if (higher) base = -base, loss = -loss;
    return loss <= base || loss < acceptance_line(base, tolerance);  // false for NaN on either side
  };
  const auto unknown = [](const sample& s, std::size_t i) { return s.not_finite > 0 && !std::isfinite(s.losses[i]); };
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    if (unknown(fp32, i) || unknown(got, i)) continue;  // of means a lost batch leaves nothing
    if (!passes(fp32.losses[i], got.losses[i])) return false;
  }
  return passes(fp32.loss, got.loss);
}

/// Returns: by how much `got`'s score is below FP32's, as a part of that; NaN where one of them has none.
inline double score_lost(const sample& fp32, const sample& got) {
  if (!fp32.score || !got.score) return std::numeric_limits<double>::quiet_NaN();
  const double lost = *fp32.score - *got.score;
  return *fp32.score == 0 ? lost : lost / std::abs(*fp32.score);
}

}  // namespace comp
