// SPDX-License-Identifier: Apache-2.0
// Whether a candidate's loss is as good as FP32's: the paper's loss_i < loss_0 * 101%, right for negative losses and
// for trainers with several losses too. Source: CoMP paper, section 3.2 and algorithm 1.
#pragma once

#include <cmath>
#include <comp/core/sample.hpp>
#include <cstddef>
#include <vector>

namespace comp {

/// Returns: the loss that a candidate must stay under; loss_0 + tolerance |loss_0|.
inline double acceptance_line(double fp32_loss, double tolerance) {
  return fp32_loss + tolerance * std::abs(fp32_loss);
}

/// Returns: true when `got` ended well and each of its losses is under the line of FP32's, or no worse than FP32's.
/// `higher`: losses are maximised.
inline bool accepted(const sample& fp32, const sample& got, double tolerance = 0.01, bool higher = false) {
  if (!got.ok() || got.losses.size() != fp32.losses.size()) return false;
  const auto passes = [=](double base, double loss) {
    if (higher) base = -base, loss = -loss;
    return loss <= base || loss < acceptance_line(base, tolerance);  // false for NaN on either side
  };
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    if (!passes(fp32.losses[i], got.losses[i])) return false;
  }
  return passes(fp32.loss, got.loss);
}

}  // namespace comp
