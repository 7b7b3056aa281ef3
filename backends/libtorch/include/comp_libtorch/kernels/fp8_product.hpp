// SPDX-License-Identifier: Apache-2.0
// Products of matrices in FP8 by the units of a GPU. Each operand has one FP32 scale, computed from the matrix itself,
// and is rounded by ATen's operators in two passes over memory; a finite one has the elements that quantize.hpp gives
// it. The product is at::_scaled_mm's: cuBLASLt's on a GPU of compute capability 8.9 or newer, plain code on a CPU.
#pragma once

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>

#include <comp/core/scaled_formats.hpp>
#include <cstdint>
#include <limits>
#include <optional>

namespace comp::libtorch::detail {

/// A matrix whose values are its elements times a scale, a tensor of one FP32 number.
struct fp8_matrix {
  at::Tensor elements, scale;
  fp8_matrix transposed() const { return {elements.t().clone(at::MemoryFormat::Contiguous), scale}; }
};

/// Returns: the matrix in E4M3 or E5M2. One that is not finite has scale 1, and no value that is too large is finite.
inline fp8_matrix to_fp8(const at::Tensor& matrix, const element_format& to) {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  const at::Tensor largest = at::linalg_vector_norm(matrix, infinite, at::OptionalIntArrayRef{}, false, at::kFloat);
  largest.nan_to_num_(to.largest, to.largest);
  // A scale with an axis takes part in type promotion: the product is FP32 and is rounded once, when it is written.
  const at::Tensor encode = at::full_like(largest, to.largest).div_(largest).clamp_max_(0x1p100F).view(1);
  const auto type = to == element_of(precision::fp8_e5m2) ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
  at::Tensor elements = at::empty(matrix.sizes(), matrix.options().dtype(type));
  at::mul_out(elements, matrix, encode);
  return {elements, encode.reciprocal()};
}

/// Returns: whether multiply() takes `b` of that many rows, and sums over that many columns.
inline bool has_fp8_product(std::int64_t rows_of_b, std::int64_t columns) {
  return rows_of_b > 0 && columns > 0 && rows_of_b % 16 == 0 && columns % 16 == 0;  // what cuBLASLt aligns to
}

/// Returns: rows of `a` times rows of `b` in `result`, BF16 or FP32; only BF16 may have a bias, which is BF16, too, and
/// has no gaps in memory. Two matrices in E5M2 have no product. `fast`: sums have fewer bits than FP32 on some GPUs.
inline at::Tensor multiply(const fp8_matrix& a, const fp8_matrix& b, at::ScalarType result, bool fast = false,
                           const std::optional<at::Tensor>& bias = {}) {
  return at::_scaled_mm(a.elements, b.elements.t(), a.scale, b.scale, bias, std::nullopt, result, fast);
}

}  // namespace comp::libtorch::detail
