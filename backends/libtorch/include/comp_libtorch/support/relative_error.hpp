// SPDX-License-Identifier: Apache-2.0
// How far tensors are from others, as 2-norms.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace comp::libtorch::detail {

inline at::Tensor dense(const at::Tensor& t) { return t.layout() == at::kStrided ? t : t.to_dense(); }
inline double norm_of(const at::Tensor& t, double order = 2) {
  const auto value = at::linalg_vector_norm(t, order).item<double>();
  const bool squares_fit = order != 2 || (value > 1e-12 && std::isfinite(value));  // in FP32
  return squares_fit ? value : at::linalg_vector_norm(t, order, {}, false, at::kDouble).item<double>();
}
/// Of `low` from `scale` times `exact`. Returns: infinity where something is not finite; 1 where FP32's are all zero
/// and the others are not.
inline double relative_error(const std::vector<at::Tensor>& low, const std::vector<at::Tensor>& exact,
                             double scale = 1) {
  const at::NoGradGuard no_grad;
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < std::min(low.size(), exact.size()); ++i) {
    if (!low[i].defined() || !exact[i].defined()) continue;
    const at::Tensor left = dense(low[i].detach()), right = dense(exact[i].detach());
    double off = norm_of(left.sub(right, scale)), all = scale * norm_of(right);
    if (!std::isfinite(off) || !std::isfinite(all)) {  // a mask's -inf is no error where both have it
      const at::Tensor scaled = right.mul(scale);
      off = norm_of(left.sub(scaled).masked_fill_(left.eq(scaled), 0));
      all = norm_of(scaled.nan_to_num(0, 0, 0));
    }
    difference = std::hypot(difference, off);
    whole = std::hypot(whole, all);
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  if (difference == 0) return 0;
  return whole > 0 ? difference / whole : 1;
}

}  // namespace comp::libtorch::detail
