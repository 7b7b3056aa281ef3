// SPDX-License-Identifier: Apache-2.0
// What a matrix product in a format below 16 bits does to each of its operands: the elements, the scales, how both are
// rounded, and what is done to the values before. One row per format (docs/how-to/formats.md has them as a table).
#pragma once

#include <comp/core/precision.hpp>
#include <comp/core/product.hpp>
#include <cstdint>

namespace comp {

/// A matrix that a product of a linear layer reads: x, w or dy.
enum class operand : std::uint8_t { input, weight, gradient };

/// The format of an operand's elements, which scales multiply: sign, exponent and fraction, with subnormals.
struct element_format {
  int exponent_bits, fraction_bits;
  float largest;

  /// Returns: the exponent of the smallest normal value, which subnormals share.
  constexpr int smallest_exponent() const { return 2 - (1 << (exponent_bits - 1)); }
  bool operator==(const element_format&) const = default;
};
constexpr element_format element_of(precision p) {
  return {traits(p).exponent_bits, traits(p).fraction_bits, static_cast<float>(traits(p).largest)};
}

enum class scale_kind : std::uint8_t {
  tensor_fp32,  // one factor for the whole matrix
  block_fp32,
  block_e8m0,  // a power of two
  block_e4m3   // and one FP32 factor for the whole matrix
};
enum class scale_rounding : std::uint8_t {
  nearest,
  up  // to a power of two at which no element of the block is too large
};
enum class element_rounding : std::uint8_t { nearest_even, stochastic };
enum class transform : std::uint8_t {
  none,
  hadamard16  // each 16 values along the contraction, by one Hadamard matrix with signs; both operands or none
};

/// How many values share a scale, along the contraction and across it. 0: all of them.
struct block_shape {
  int along = 0, across = 0;
  bool operator==(const block_shape&) const = default;
};

struct operand_format {
  element_format element;
  scale_kind scale;
  block_shape block = {};
  scale_rounding scales = scale_rounding::nearest;
  element_rounding elements = element_rounding::nearest_even;
  transform before = transform::none;
  bool operator==(const operand_format&) const = default;
};

/// Which of 16 values change their sign before the Hadamard matrix: bit i for value i.
/// Source: TransformerEngine, get_wgrad_sign_vector(); they are the same in all layers and steps.
inline constexpr std::uint32_t hadamard_negative = 0xd7e8;

/// Returns: how an operator in precision `p` rounds operand `o` of product `of`.
/// Requires: is_scaled(p), and a product that reads the operand.
/// Source:
///   fp8_*         TransformerEngine 2.20's Float8CurrentScaling, hybrid; fp8_e5m2 has E5M2 also for the forward's x
///   fp8_block128  DeepSeek-V3 (arXiv 2412.19437) with the default scales of TransformerEngine's Float8BlockScaling:
///                 FP32 that are powers of two
///   mxfp8, mxfp4  OCP Microscaling Formats 1.0, but scales rounded up as in arXiv 2506.08027, because OCP's rounding
///                 clamps the largest elements; E4M3 everywhere as in TransformerEngine's MXFP8BlockScaling
///   nvfp4         arXiv 2509.25149 as TransformerEngine's NVFP4BlockScaling
constexpr operand_format format_of(precision p, product of, operand o) {
  const bool weight = o == operand::weight, gradient = o == operand::gradient;
  const element_format e4m3 = element_of(precision::fp8_e4m3), e5m2 = element_of(precision::fp8_e5m2);
  switch (p) {
    case precision::fp8_e4m3:
      return {gradient ? e5m2 : e4m3, scale_kind::tensor_fp32};
    case precision::fp8_e5m2: {
      const bool first = o == operand::input && (of == product::forward || of == product::all);
      return {gradient || first ? e5m2 : e4m3, scale_kind::tensor_fp32};
    }
    case precision::fp8_block128:
      return {e4m3, scale_kind::block_fp32, {128, weight ? 128 : 1}, scale_rounding::up};
    case precision::mxfp8:
    case precision::mxfp4:
      return {element_of(p), scale_kind::block_e8m0, {32, 1}, scale_rounding::up};
    case precision::nvfp4:
      return {element_of(p),
              scale_kind::block_e4m3,
              {16, weight ? 16 : 1},
              scale_rounding::nearest,
              gradient ? element_rounding::stochastic : element_rounding::nearest_even,
              of == product::weight_gradient ? transform::hadamard16 : transform::none};
    case precision::fp64:
    case precision::fp32:
    case precision::tf32:
    case precision::bf16:
    case precision::fp16:
    case precision::bf16_fp32:
      break;
  }
  return {element_of(p), scale_kind::tensor_fp32};
}

}  // namespace comp
