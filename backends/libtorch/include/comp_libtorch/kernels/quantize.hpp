// SPDX-License-Identifier: Apache-2.0
// Rounds an operand of a product as a format below 16 bits does, with its scales, by ATen's operators alone. So it runs
// on any device. What comes back is FP32: the values that the product reads. A product of two such operands in FP32 is
// that of the format.
// The bits are those of comp_native/math/scaled.hpp, which names the sources and says what becomes of NaN and infinity;
// the random numbers of stochastic rounding are LibTorch's.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <array>
#include <cmath>
#include <comp/core/scaled_formats.hpp>
#include <comp_libtorch/support/perturbation.hpp>
#include <cstdint>
#include <limits>

namespace comp::libtorch::detail {

/// x times `encode` is rounded to an element, and that times `decode` is what a product reads.
struct scale_tensors {
  at::Tensor encode, decode;
};

class quantizer {
 public:
  explicit quantizer(const operand_format& to) : to_{to} {}

  /// Returns: what a product that sums over the columns reads of the FP32 matrix (rows, columns). A block at an edge
  /// has the values that are there.
  at::Tensor operator()(at::Tensor matrix) const {
    const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
    if (matrix.numel() == 0) return matrix;
    if (to_.before == transform::hadamard16) matrix = transformed(matrix);
    if (to_.scale == scale_kind::tensor_fp32)
      return rounded(matrix, fp32_scales(matrix.abs().amax(), false, 0x1p100F), to_);
    const std::int64_t along = to_.block.along, across = to_.block.across;
    const auto padding = [](std::int64_t extent, std::int64_t block) { return (block - extent % block) % block; };
    const at::Tensor padded =
        at::constant_pad_nd(matrix, {0, padding(columns, along), 0, padding(rows, across)}).contiguous();
    const at::Tensor blocks = padded.view({padded.size(0) / across, across, padded.size(1) / along, along});
    const at::Tensor y = rounded(blocks, scales_of(blocks.abs().amax({1, 3}, true)), to_).view(padded.sizes());
    return y.narrow(0, 0, rows).narrow(1, 0, columns);
  }

 private:
  static constexpr float most = std::numeric_limits<float>::max(), infinite = std::numeric_limits<float>::infinity();

  static at::Tensor bits_of(const at::Tensor& x) { return x.view(at::kInt); }
  static at::Tensor values_of(const at::Tensor& bits) { return bits.view(at::kFloat); }

  scale_tensors scales_of(const at::Tensor& largest) const {
    switch (to_.scale) {
      case scale_kind::tensor_fp32:
      case scale_kind::block_fp32:
        return fp32_scales(largest, to_.scales == scale_rounding::up, most);
      case scale_kind::block_e8m0:
        return e8m0_scales(largest);
      case scale_kind::block_e4m3:
        return nvfp4_scales(largest);
    }
    return {};
  }
  scale_tensors fp32_scales(const at::Tensor& largest, bool power_of_two, float bound) const {
    const at::Tensor wanted = at::full_like(largest, to_.element.largest).div_(largest).clamp_max_(bound);
    const at::Tensor kept = power_of_two ? values_of(bits_of(wanted).bitwise_and(0x7f800000)) : wanted;
    const at::Tensor encode = at::where((largest > 0).logical_and_(largest < infinite), kept, at::ones_like(kept));
    return {encode, at::ones_like(encode).div_(encode)};
  }
  scale_tensors e8m0_scales(const at::Tensor& largest) const {
    const at::Tensor wanted = largest.mul(1 / to_.element.largest), bits = bits_of(wanted);
    const at::Tensor above =
        at::where(bits > 0x400000, (bits + 0x7fffff).bitwise_right_shift(23), at::zeros_like(bits));
    const at::Tensor exponent = above.clamp_max_(254), is_number = wanted == wanted;
    const auto power_of_two = [](const at::Tensor& e) {
      return values_of(at::where(e == 0, at::full_like(e, 0x400000), e.bitwise_left_shift(23)));
    };
    return {at::where(is_number, power_of_two(254 - exponent), wanted),
            at::where(is_number, power_of_two(exponent), wanted)};
  }
  scale_tensors nvfp4_scales(const at::Tensor& largest) const {
    const at::Tensor of_all = largest.amax(),
                     wanted = at::full_like(of_all, 448.0F * 6.0F).div_(of_all).clamp_max_(most);
    const at::Tensor factor = at::where((of_all == 0).logical_or_(wanted == 0), at::ones_like(wanted), wanted);
    const at::Tensor inverse = at::ones_like(factor).div_(factor), one = at::ones_like(largest);
    constexpr operand_format e4m3{element_of(precision::fp8_e4m3), scale_kind::block_e4m3};
    const at::Tensor scale = rounded(largest * (factor * (1.0F / 6.0F)), {one, one}, e4m3);
    return {one.div(scale * inverse).clamp_max_(most), (scale * of_all).mul_(1.0F / (6.0F * 448.0F))};
  }

  static at::Tensor rounded(const at::Tensor& x, const scale_tensors& s, const operand_format& to) {
    const bool fp32_scale = to.scale == scale_kind::tensor_fp32 || to.scale == scale_kind::block_fp32;
    at::Tensor bounded = x.mul(s.encode).abs_();
    if (!fp32_scale) bounded.clamp_max_(most);
    const at::Tensor t = bounded.clamp_max(to.element.largest);
    at::Tensor y = to.elements == element_rounding::stochastic ? stochastic(t, to.element) : nearest(t, to.element);
    y.add_(bounded.mul_(0)).mul_(s.decode);
    return y.copysign_(x);
  }

  static std::int64_t dropped_bits(const element_format& e) { return 23 - e.fraction_bits; }
  static std::int64_t smallest_normal(const element_format& e) { return (e.smallest_exponent() + 127LL) << 23; }

  // Adding and subtracting a number whose last bit has the value of the element's last bit rounds to even.
  static at::Tensor nearest(const at::Tensor& t, const element_format& e) {
    const at::Tensor exponent = bits_of(t).bitwise_and(0x7f800000).clamp_min_(smallest_normal(e));
    const at::Tensor large = values_of(exponent.add_((dropped_bits(e) << 23) | 0x400000));
    return t.add(large).sub_(large);
  }
  // Rounds up with the probability of the distance from the lower element, to 2^-17.
  static at::Tensor stochastic(const at::Tensor& t, const element_format& e) {
    const double smallest = std::ldexp(1.0, e.smallest_exponent());
    const at::Tensor added = (t < smallest).to(at::kFloat).mul_(smallest);  // subnormals have that one's spacing
    const std::int64_t dropped = dropped_bits(e);
    const at::Tensor noise =
        random_bits(t).bitwise_left_shift_(dropped - 16).bitwise_or_(std::int64_t{1} << (dropped - 17));
    const at::Tensor kept = bits_of(t + added).add_(noise).bitwise_and_(-(std::int64_t{1} << dropped));
    return values_of(kept).sub(added);
  }
  // Returns 16 random bits per value. The values are their seed, so that a step that is repeated rounds alike, and the
  // generators that a model draws from stay as they are.
  static at::Tensor random_bits(const at::Tensor& t) {
    const auto seed = static_cast<std::uint64_t>(bits_of(t).sum(at::kLong).item<std::int64_t>());
    return at::randint(0, 1 << 16, t.sizes(), generator_for(t.device(), seed), t.options().dtype(at::kInt));
  }

  // Multiplies each 16 values along the contraction by Sylvester's Hadamard matrix with signs, and rounds to BF16. What
  // is left of 16 stays.
  static at::Tensor transformed(const at::Tensor& matrix) {
    const std::int64_t rows = matrix.size(0), whole = matrix.size(1) / 16 * 16;
    if (whole == 0) return matrix;
    std::array<float, 16> signs{};
    for (std::size_t i = 0; i < 16; ++i) signs[i] = (hadamard_negative >> i & 1U) != 0 ? -0.25F : 0.25F;
    at::Tensor v = matrix.narrow(1, 0, whole).reshape({-1, 16}) *
                   at::from_blob(signs.data(), {16}, at::kFloat).to(matrix.device(), at::kFloat, false, true);
    for (std::int64_t half = 1; half < 16; half *= 2) {
      const at::Tensor pairs = v.view({-1, 8 / half, 2, half}), a = pairs.select(2, 0), b = pairs.select(2, 1);
      v = at::stack({a + b, a - b}, 2);
    }
    const at::Tensor result = v.to(at::kBFloat16).to(at::kFloat).view({rows, whole});
    return whole == matrix.size(1) ? result : at::cat({result, matrix.narrow(1, whole, matrix.size(1) - whole)}, 1);
  }

  operand_format to_;
};

}  // namespace comp::libtorch::detail
