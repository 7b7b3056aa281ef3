// SPDX-License-Identifier: Apache-2.0
// FP16 as it is stored: in files, and in the memory of backends that compute in it.
#pragma once

#include <cstdint>

namespace comp::detail {

/// Returns: the value of FP16's bits, in constant expressions too; a NaN is quiet and keeps its payload.
constexpr float fp16_value(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  std::uint32_t exponent = bits >> 10 & 31U, fraction = bits & 0x3ffU;
  if (exponent == 31) {
    const std::uint32_t quiet = fraction ? 0x400000U : 0;
    return __builtin_bit_cast(float, sign | 0x7f800000U | quiet | fraction << 13);
  }
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24F;
    return sign ? -value : value;
  }
  return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace comp::detail
