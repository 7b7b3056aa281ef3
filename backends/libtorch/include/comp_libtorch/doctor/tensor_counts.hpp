// SPDX-License-Identifier: Apache-2.0
// Counts the values of a tensor, on LibTorch's threads. A tensor on another device is copied to the host for that. FP64
// values are counted as FP32, complex ones by their parts. Integers and quantised tensors are not counted.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <comp/doctor/examination.hpp>
#include <comp/doctor/values.hpp>
#include <comp_libtorch/support/parallel.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace comp::libtorch::detail {

/// Returns: the values in FP32, on the host; nothing for what is not counted. A finite FP64 value stays finite.
inline std::optional<at::Tensor> countable(const at::Tensor& given) {
  if (!given.defined()) return std::nullopt;
  const bool usual = given.scalar_type() == at::kFloat && given.layout() == at::kStrided && given.device().is_cpu();
  if (usual && !given.is_neg()) return given.numel() > 0 ? std::optional{given} : std::nullopt;
  const bool wide = given.scalar_type() == at::kDouble || given.is_complex();
  if (!wide && !is_plannable(given.scalar_type())) return std::nullopt;
  const at::NoGradGuard no_gradients;
  at::Tensor t = given.detach();
  if (t.is_sparse()) t = t._values();
  if (t.layout() != at::kStrided || t.is_meta() || t.numel() == 0) return std::nullopt;
  if (!t.device().is_cpu()) t = t.cpu();
  if (t.is_complex()) t = at::view_as_real(t.resolve_conj());
  if (t.scalar_type() == at::kDouble) {
    constexpr double most = std::numeric_limits<float>::max();
    t = at::where(t.isinf(), t, t.clamp(-most, most));
  }
  return t.to(at::kFloat);
}

struct tensor_values {
  value_counts counts;
  std::vector<float> sample;
};

inline std::vector<float> sample_of(const at::Tensor& t) {
  const auto* data = values_of<float>(t);
  std::vector<float> values;
  for (const std::size_t place : sample_places(static_cast<std::size_t>(t.numel()))) {
    auto left = static_cast<std::int64_t>(place);
    std::int64_t offset = 0;
    for (std::int64_t d = t.dim() - 1; d >= 0; --d) {
      offset += left % t.size(d) * t.stride(d);
      left /= t.size(d);
    }
    values.push_back(data[offset]);
  }
  return values;
}

/// Requires: `t` is countable().
inline tensor_values values_of(const at::Tensor& t) {
  constexpr std::int64_t at_once = 1 << 16;  // a size that no number of threads changes, so sums come out the same
  const at::NoGradGuard no_gradients;
  const at::Tensor whole = t.is_non_overlapping_and_dense() ? t : t.contiguous();
  const auto* data = values_of<float>(whole);
  const std::int64_t n = whole.numel(), parts = (n + at_once - 1) / at_once;
  std::vector<value_counts> of_parts(static_cast<std::size_t>(parts));
  in_parallel(parts, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      const auto size = static_cast<std::size_t>(std::min(at_once, n - i * at_once));
      of_parts[static_cast<std::size_t>(i)] = counted(std::span{data + i * at_once, size});
    }
  });
  tensor_values all{of_parts.front(), sample_of(whole)};
  for (std::size_t i = 1; i < of_parts.size(); ++i) all.counts.merge(of_parts[i]);
  return all;
}

}  // namespace comp::libtorch::detail
