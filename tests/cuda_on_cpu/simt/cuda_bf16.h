// SPDX-License-Identifier: Apache-2.0
// CUDA's BF16 type and its conversions, to the nearest, ties to even.
#pragma once

#include <comp_native/math/formats.hpp>

struct __nv_bfloat16 {
  unsigned short bits;
};
inline float __bfloat162float(__nv_bfloat16 b) { return comp::native::math::load(comp::native::math::bf16{b.bits}); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  comp::native::math::bf16 b{};
  comp::native::math::store(b, v);
  return {b.bits};
}
inline __nv_bfloat16 __float2bfloat16(float v) { return __float2bfloat16_rn(v); }
