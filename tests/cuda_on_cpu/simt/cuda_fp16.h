// SPDX-License-Identifier: Apache-2.0
// CUDA's half precision type and its conversions, to the nearest, ties to even.
#pragma once

#include <comp_native/math/formats.hpp>

struct __half {
  unsigned short bits;
};
inline float __half2float(__half h) { return comp::native::math::fp16_value(h.bits); }
inline __half __float2half_rn(float v) { return {comp::native::math::fp16_bits(v)}; }
inline __half __float2half(float v) { return __float2half_rn(v); }
