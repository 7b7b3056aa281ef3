// SPDX-License-Identifier: Apache-2.0
// BF16 and FP16 as storage, and their conversions from and to FP32: rounding to the nearest value, ties to even, with
// subnormals, infinities and NaN. A value too large for FP16 becomes infinity. On a GPU its own instructions convert,
// and give the same bits except for a NaN's payload.
#pragma once

#include <comp/core/half.hpp>
#include <cstdint>

#include "host_device.hpp"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace comp::native::math {

struct bf16 {
  std::uint16_t bits;
};
struct fp16 {
  std::uint16_t bits;
};

template <class To, class From>
COMP_HD To bits_as(From from) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
#else
  return __builtin_bit_cast(To, from);
#endif
}

/// Rounds one value, in integer arithmetic only, so that it works in constant expressions and on any CPU.
constexpr std::uint16_t fp16_bits(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U | (magnitude >> 13 & 0x3ffU));
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 65520 and more
  if (magnitude <= 0x33000000U) return sign;                                        // 2^-25 and less
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  std::uint32_t fraction = (magnitude & 0x7fffffU) | 0x800000U;
  const int shift = exponent < -14 ? -1 - exponent : 13;  // bits that are cut off; subnormals lose more
  const std::uint32_t half = 1U << (shift - 1), rest = fraction & ((half << 1) - 1);
  fraction >>= shift;
  if (rest > half || (rest == half && (fraction & 1))) ++fraction;
  const std::uint32_t biased = exponent < -14 ? 0 : static_cast<std::uint32_t>(exponent + 14) << 10;
  return static_cast<std::uint16_t>(sign | (biased + fraction));
}
using comp::detail::fp16_value;

COMP_HD float load(float x) { return x; }
COMP_HD float load(bf16 x) { return bits_as<float>(std::uint32_t{x.bits} << 16); }
COMP_HD void store(float& to, float x) { to = x; }
COMP_HD void store(bf16& to, float x) {
#ifdef __CUDA_ARCH__
  to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  const auto bits = bits_as<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fffU + (bits >> 16 & 1U);
  const std::uint32_t quiet = bits | 0x400000U;
  to.bits = static_cast<std::uint16_t>(((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded) >> 16);
#endif
}
COMP_HD float load(fp16 x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x.bits));
#else
  return fp16_value(x.bits);
#endif
}
COMP_HD void store(fp16& to, float x) {
#ifdef __CUDA_ARCH__
  to.bits = __half_as_ushort(__float2half_rn(x));
#else
  to.bits = fp16_bits(x);
#endif
}

}  // namespace comp::native::math
