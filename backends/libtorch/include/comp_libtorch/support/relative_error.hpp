// SPDX-License-Identifier: Apache-2.0
// How far tensors are from others, in 2-norms.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

inline at::Tensor dense(const at::Tensor& t) { return t.layout() == at::kStrided ? t : t.to_dense(); }
inline double norm_of(const at::Tensor& t, double order = 2) {
  const auto value = at::linalg_vector_norm(t, order).item<double>();
  const bool squares_fit = order != 2 || (value > 1e-12 && std::isfinite(value));  // FP32 held them
  return squares_fit ? value : at::linalg_vector_norm(t, order, {}, false, at::kDouble).item<double>();
}
/// Returns: the 2-norms of `low` - `scale` * `exact` and of `scale` * `exact`. Nothing if they are not finite, and
/// for other than small CPU tensors, for which ATen is faster.
inline std::optional<std::pair<double, double>> small_norms(const at::Tensor& low, const at::Tensor& exact,
                                                            double scale) {
  constexpr std::int64_t small = 1024;
  const bool plain = exact.numel() <= small && exact.scalar_type() == at::kFloat && exact.device().is_cpu() &&
                     exact.is_contiguous() && low.is_contiguous() && low.sizes() == exact.sizes() && !exact.is_neg() &&
                     !low.is_neg();
  if (!plain) return std::nullopt;
  const at::Tensor left = low.to(at::kCPU, at::kFloat);
  const auto *a = values_of<float>(left), *b = values_of<float>(exact);
  double off = 0, all = 0;
  for (std::int64_t i = 0; i < exact.numel(); ++i) {
    const double whole = scale * b[i], difference = a[i] - whole;
    off += difference * difference;
    all += whole * whole;
  }
  if (!std::isfinite(off) || !std::isfinite(all)) return std::nullopt;
  return std::pair{std::sqrt(off), std::sqrt(all)};
}

/// Returns: the error of `low` relative to `scale` times `exact`; infinity if something is not finite; 1 if the exact
/// values are all zero and the others are not.
inline double relative_error(const std::vector<at::Tensor>& low, const std::vector<at::Tensor>& exact,
                             double scale = 1) {
  const at::NoGradGuard no_grad;
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < std::min(low.size(), exact.size()); ++i) {
    if (!low[i].defined() || !exact[i].defined()) continue;
    const at::Tensor left = dense(low[i].detach()), right = dense(exact[i].detach());
    const auto norms = small_norms(left, right, scale);
    double off = norms ? norms->first : norm_of(left.sub(right, scale));
    double all = norms ? norms->second : scale * norm_of(right);
    if (!std::isfinite(off) || !std::isfinite(all)) {  // a mask's -inf is no error if both have it
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
