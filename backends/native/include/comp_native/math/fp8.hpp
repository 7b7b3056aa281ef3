// SPDX-License-Identifier: Apache-2.0
// The two FP8 formats as storage, and their conversions from and to FP32: rounding to the nearest value, ties to even,
// with subnormals. A value that is too large becomes the largest one, as NVIDIA's saturating instructions do. A value
// that is not finite becomes NaN, so that the conversion does not hide an overflow before it. On a GPU its own
// instructions convert, and give the same bits except for a NaN's sign.
// Source: OCP 8-bit floating point specification 1.0: E4M3 has no infinity and one NaN, E5M2 is FP16 cut short.
#pragma once

#include <comp/core/precision.hpp>

#include "formats.hpp"

#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

namespace comp::native::math {

struct e4m3 {
  std::uint8_t bits;
};
struct e5m2 {
  std::uint8_t bits;
};

template <precision P, std::uint8_t Largest>
struct fp8_limits {
  static constexpr int fraction_bits = traits(P).fraction_bits, bias = (1 << (traits(P).exponent_bits - 1)) - 1;
  static constexpr std::uint8_t largest = Largest, not_a_number = 0x7f;
  static constexpr auto largest_value = static_cast<float>(traits(P).largest);
};
template <class F>
struct fp8_format;
template <>
struct fp8_format<e4m3> : fp8_limits<precision::fp8_e4m3, 0x7e> {};
template <>
struct fp8_format<e5m2> : fp8_limits<precision::fp8_e5m2, 0x7b> {};

/// Rounds one value, in integer arithmetic only.
template <class F>
constexpr std::uint8_t fp8_bits(float x) {
  using format = fp8_format<F>;
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x7f800000U) return static_cast<std::uint8_t>(sign | format::not_a_number);
  const int exponent = static_cast<int>(magnitude >> 23) - 127, smallest = 1 - format::bias;
  const int missing = exponent < smallest ? smallest - exponent : 0;  // bits that a subnormal lacks
  if (missing > format::fraction_bits + 1) return sign;
  std::uint32_t fraction = (magnitude & 0x7fffffU) | 0x800000U;
  const int shift = 23 - format::fraction_bits + missing;
  const std::uint32_t half = 1U << (shift - 1), rest = fraction & ((half << 1) - 1);
  fraction >>= shift;
  if (rest > half || (rest == half && (fraction & 1))) ++fraction;
  const int biased = missing ? 0 : exponent + format::bias - 1;
  const std::uint32_t code = (static_cast<std::uint32_t>(biased) << format::fraction_bits) + fraction;
  return static_cast<std::uint8_t>(sign | (code > format::largest ? format::largest : code));
}
template <class F>
constexpr float fp8_value(std::uint8_t code) {
  using format = fp8_format<F>;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24, magnitude = code & 0x7fU;
  if (magnitude > format::largest) {  // E5M2's infinity and the NaNs
    const std::uint32_t quiet = format::bias == 15 && magnitude == 0x7cU ? 0U : 0x400000U;
    return __builtin_bit_cast(float, sign | 0x7f800000U | quiet);
  }
  const std::uint32_t exponent = magnitude >> format::fraction_bits;
  const std::uint32_t fraction = magnitude & ((1U << format::fraction_bits) - 1);
  if (exponent == 0) {
    const float unit =
        __builtin_bit_cast(float, static_cast<std::uint32_t>(128 - format::bias - format::fraction_bits) << 23);
    const float value = static_cast<float>(fraction) * unit;
    return sign ? -value : value;
  }
  const auto biased = static_cast<std::uint32_t>(static_cast<int>(exponent) + 127 - format::bias);
  return __builtin_bit_cast(float, sign | biased << 23 | fraction << (23 - format::fraction_bits));
}

#ifdef __CUDA_ARCH__
COMP_HD std::uint8_t fp8_converted(float x, __nv_fp8_interpretation_t to) {
  return __nv_cvt_float_to_fp8(fabsf(x) < __builtin_huge_valf() ? x : __builtin_nanf(""), __NV_SATFINITE, to);
}
COMP_HD float fp8_converted(std::uint8_t code, __nv_fp8_interpretation_t from) {
  return __half2float(__half{__nv_cvt_fp8_to_halfraw(code, from)});
}
COMP_HD float load(e4m3 x) { return fp8_converted(x.bits, __NV_E4M3); }
COMP_HD float load(e5m2 x) { return fp8_converted(x.bits, __NV_E5M2); }
COMP_HD void store(e4m3& to, float x) { to.bits = fp8_converted(x, __NV_E4M3); }
COMP_HD void store(e5m2& to, float x) { to.bits = fp8_converted(x, __NV_E5M2); }
#else
COMP_HD float load(e4m3 x) { return fp8_value<e4m3>(x.bits); }
COMP_HD float load(e5m2 x) { return fp8_value<e5m2>(x.bits); }
COMP_HD void store(e4m3& to, float x) { to.bits = fp8_bits<e4m3>(x); }
COMP_HD void store(e5m2& to, float x) { to.bits = fp8_bits<e5m2>(x); }
#endif

}  // namespace comp::native::math
