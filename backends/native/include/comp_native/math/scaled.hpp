// SPDX-License-Identifier: Apache-2.0
// The arithmetic of formats below 16 bits (comp/core/scaled_formats.hpp): the scales of a block, and an element rounded
// between its scales, in FP32. Products and quotients round in the order of the source that is named, since another
// order gives other bits. What is not finite stays so: with FP32 scales it becomes NaN and the scale 1, with E8M0
// scales infinity stays and NaN makes its block NaN, in NVFP4 nothing of the matrix is finite.
#pragma once

#include <comp/core/scaled_formats.hpp>
#include <comp_native/device.hpp>
#include <cstddef>
#include <cstdint>

#include "formats.hpp"
#include "host_device.hpp"
#include "philox.hpp"

namespace comp::native::math {

/// x times `encode` is rounded to an element, and that times `decode` is what a product reads.
struct scale_pair {
  float encode, decode;
};

namespace detail {
inline constexpr float infinite = __builtin_huge_valf(), most = 0x1.fffffep127F;
/// Returns: the smaller one; b if either is NaN.
COMP_HD float smaller(float a, float b) { return a < b ? a : b; }
/// Returns: 2^(e - 127), for e from 0 to 254.
COMP_HD float power_of_two(std::uint32_t e) { return bits_as<float>(e ? e << 23 : 0x400000U); }
}  // namespace detail

/// Rounds elements of one format.
class element_rounder {
 public:
  constexpr explicit element_rounder(const operand_format& f)
      : dropped_{23 - f.element.fraction_bits},
        smallest_{(f.element.smallest_exponent() + 127) << 23},
        largest_{f.element.largest},
        bound_{f.scale == scale_kind::tensor_fp32 || f.scale == scale_kind::block_fp32 ? detail::infinite
                                                                                       : detail::most} {}

  /// Returns: x rounded to the nearest element, ties to even. Adding and subtracting a number whose last bit has the
  /// value of the element's last bit rounds so.
  COMP_HD float nearest(float x, scale_pair s) const {
    const float bounded = detail::smaller(bound_, magnitude(x * s.encode)), t = detail::smaller(largest_, bounded);
    const std::int32_t exponent = bits_as<std::int32_t>(t) & 0x7f800000;
    const auto above = static_cast<std::uint32_t>(exponent > smallest_ ? exponent : smallest_);
    const auto large = bits_as<float>(above + ((static_cast<std::uint32_t>(dropped_) << 23) | 0x400000U));
    return finished((t + large) - large, bounded, x, s);
  }
  /// Returns: x rounded to one of the two elements beside it, up with the probability of its distance from the lower
  /// one, to 2^-17. `random` has 16 bits.
  COMP_HD float stochastic(float x, scale_pair s, std::uint32_t random) const {
    const float bounded = detail::smaller(bound_, magnitude(x * s.encode)), t = detail::smaller(largest_, bounded);
    const auto normal = bits_as<float>(smallest_);
    const float added = t < normal ? normal : 0.0F;  // subnormals have the spacing of the smallest normal values
    const std::uint32_t noise = (random << (dropped_ - 16)) | (1U << (dropped_ - 17));
    const std::uint32_t bits = bits_as<std::uint32_t>(t + added) + noise;
    return finished(bits_as<float>(bits & (0xffffffffU << dropped_)) - added, bounded, x, s);
  }

 private:
  COMP_HD static float magnitude(float x) { return bits_as<float>(bits_as<std::uint32_t>(x) & 0x7fffffffU); }
  /// Returns: the element with the sign of x, scaled back; NaN if `bounded` is not finite.
  COMP_HD static float finished(float element, float bounded, float x, scale_pair s) {
    const float y = (element + 0.0F * bounded) * s.decode;
    return bits_as<float>(bits_as<std::uint32_t>(y) | (bits_as<std::uint32_t>(x) & 0x80000000U));
  }
  std::int32_t dropped_, smallest_;
  float largest_, bound_;
};

/// Returns: the scales that make `amax` the largest element, with `encode` at most `bound`; 1 if `amax` is 0 or not
/// finite.
/// Source: TransformerEngine, recipe_common.cuh, whose bound is FLT_MAX; that of comp_cuda's FP8 is 2^100.
COMP_HD scale_pair fp32_scales(float amax, float largest, bool power_of_two, float bound) {
  const float wanted = detail::smaller(bound, largest / amax);
  const float kept = power_of_two ? bits_as<float>(bits_as<std::uint32_t>(wanted) & 0x7f800000U) : wanted;
  const float encode = amax > 0 && amax < detail::infinite ? kept : 1.0F;
  return {encode, 1 / encode};
}

/// Returns: the scales that are the power of two from which on no element is too large.
/// Source: TransformerEngine, quantize_mxfp8.cuh, and PTX's cvt.rp.satfinite.ue8m0x2.f32; torchao calls it RCEIL.
COMP_HD scale_pair e8m0_scales(float amax, float reciprocal_of_largest) {
  const float wanted = amax * reciprocal_of_largest;
  const auto bits = bits_as<std::uint32_t>(wanted);
  const std::uint32_t above = bits > 0x400000U ? (bits + 0x7fffffU) >> 23 : 0, e = above < 254 ? above : 254;
  const bool number = bits <= 0x7f800000U;
  return {number ? detail::power_of_two(254 - e) : wanted, number ? detail::power_of_two(e) : wanted};
}

/// The factor of a whole matrix in NVFP4, and the scales of its blocks.
/// Source: TransformerEngine, core_nvfp4.cuh and dequantize_nvfp4.cuh; torchao's nvfp4_reference.py has the same.
class nvfp4_scales {
 public:
  nvfp4_scales() = default;
  explicit nvfp4_scales(float amax) : amax_{amax} {
    const float wanted = detail::smaller(detail::most, 448.0F * 6.0F / amax);
    const float factor = amax == 0 || wanted == 0 ? 1.0F : wanted;
    sixth_ = factor * (1.0F / 6.0F);
    inverse_ = 1 / factor;
  }
  COMP_HD scale_pair of_block(float amax) const {
    constexpr element_rounder e4m3{operand_format{{4, 3, 448.0F}, scale_kind::block_e4m3}};
    const float scale = e4m3.nearest(amax * sixth_, {1, 1});
    return {detail::smaller(detail::most, 1 / (scale * inverse_)), scale * amax_ * (1.0F / (6.0F * 448.0F))};
  }

 private:
  float amax_ = 0, sixth_ = 0, inverse_ = 0;
};

/// Sets noise[i] to 16 random bits of the element in this row and in column 256 * span + i.
COMP_HD void rounding_noise(const dropout_key& k, std::uint64_t row, std::uint64_t span, std::uint32_t (&noise)[256]) {
  constexpr std::size_t lanes = 32;
  std::uint32_t word[4][lanes];
  for (std::size_t i = 0; i < lanes; ++i) {
    word[0][i] = static_cast<std::uint32_t>(span * lanes + i);
    word[1][i] = static_cast<std::uint32_t>(row);
    word[2][i] = static_cast<std::uint32_t>(k.draw);
    word[3][i] = static_cast<std::uint32_t>(k.draw >> 32);
  }
  philox(word, static_cast<std::uint32_t>(k.seed), static_cast<std::uint32_t>(k.seed >> 32));
  for (std::size_t j = 0; j < 4; ++j) {
    for (std::size_t i = 0; i < lanes; ++i) noise[2 * lanes * j + i] = word[j][i] & 0xffffU;
    for (std::size_t i = 0; i < lanes; ++i) noise[2 * lanes * j + lanes + i] = word[j][i] >> 16;
  }
}

/// Multiplies v[.][lane] by Sylvester's Hadamard matrix of 16, whose rows have length 4.
template <std::size_t Lanes>
COMP_HD void hadamard16(float (&v)[16][Lanes]) {
  for (std::size_t half = 1; half < 16; half *= 2) {
    for (std::size_t i = 0; i < 16; ++i) {
      if (i & half) continue;
#ifdef _OPENMP
#pragma omp simd
#endif
      for (std::size_t lane = 0; lane < Lanes; ++lane) {
        const float a = v[i][lane], b = v[i + half][lane];
        v[i][lane] = a + b;
        v[i + half][lane] = a - b;
      }
    }
  }
}

}  // namespace comp::native::math
