// SPDX-License-Identifier: Apache-2.0
// The exponential and the square root, written so that compilers vectorise loops with them and kernels need a dozen
// instructions. The standard library's may set errno or call functions, which stops the vectoriser.
#pragma once

#include <cstdint>

#include "formats.hpp"

namespace comp::native::math {

/// Returns e^x for x <= 0 and a little above, with an error of 2 units in the last place at most. Below -87.3 it is 0
/// or less than the smallest normal number; NaN stays NaN. A GPU has a unit for 2^x, so its expf takes half as many
/// instructions as the polynomial.
/// Source: range reduction and polynomial as in Cephes' expf.
COMP_HD float exp_of(float x) {
#ifdef __CUDA_ARCH__
  return expf(x);
#else
  const float clamped = x > 88.0F ? 88.0F : (x < -87.3F ? -87.3F : x);
  const float shifted = clamped * 1.44269504F + 12582912.0F;  // adding 1.5 * 2^23 leaves the integer in the low bits
  const float n = shifted - 12582912.0F;
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const std::uint32_t scale = (bits_as<std::uint32_t>(shifted) << 23) + 0x3f800000U;
  const auto value = bits_as<std::uint32_t>(p * bits_as<float>(scale));
  const std::uint32_t kept = static_cast<std::uint32_t>(x < -87.3F) - 1U;  // a mask: a branch would stop the vectoriser
  return bits_as<float>(value & kept);
#endif
}

/// Returns the square root of v >= 0 to an ulp or two.
/// Source: a first guess of the reciprocal root from the bits of v, and three steps of Newton's method.
COMP_HD float root_of(float v) {
  float r = bits_as<float>(0x5f3759dfU - (bits_as<std::uint32_t>(v) >> 1));
  for (int i = 0; i < 3; ++i) r = r * (1.5F - (0.5F * v * r) * r);
  return v * r;
}

}  // namespace comp::native::math
