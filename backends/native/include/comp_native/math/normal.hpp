// SPDX-License-Identifier: Apache-2.0
// Normal random numbers from uniform ones, two at a time: one pair with the standard library, and many pairs side by
// side in vector code. Both give the same bits in FP32, so that a training is the same whichever computed them. The
// vector code is less exact, so it tests whether its error could change the rounding to FP32. If it could, the standard
// library computes the pairs again.
// Source: Box and Muller 1958; the rounding test: Ziv 1991.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "functions.hpp"

namespace comp::native::math {

/// Returns a pair of normal numbers. Requires: u is in (0,1], v in [0,1).
inline std::array<double, 2> normal_pair(double u, double v) {
  const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * v;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Returns the logarithm of u in (0,1], with a relative error of 1e-15 at most. With u = 2^e m and m in [sqrt(1/2),
/// sqrt(2)), the logarithm of m is 2 artanh((m-1)/(m+1)).
COMP_HD double log_of(double u) {
  constexpr std::uint64_t root_of_half = 0x3FE6A09E667F3BCD, exponents = 0xFFF0000000000000;
  const auto bits = bits_as<std::uint64_t>(u), above = bits - root_of_half;
  const double m = bits_as<double>(bits - (above & exponents)), f = (m - 1) / (m + 1), z = f * f;
  const double e = bits_as<double>(0x4330000000000000 | (above + (std::uint64_t{2048} << 52)) >> 52) - (0x1p52 + 2048);
  double p = 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return e * std::numbers::ln2 + (2 * f + 2 * f * z * p);
}

/// Sets cosine and sine of an angle in [0,2 pi], with a relative error of 1e-15 at most: Taylor's series around the
/// nearest multiple of pi / 2, which is subtracted in two parts (Cody and Waite 1980).
COMP_HD void turn(double angle, double& cosine, double& sine) {
  constexpr double first = 0x1.921fb54442d18p+0, rest = 0x1.1a62633145c07p-54;  // of pi / 2; first has 50 bits
  constexpr double to_integer = 0x1.8p52;
  const double k = (angle * (2 / std::numbers::pi) + to_integer) - to_integer;
  const double r = (angle - k * first) - k * rest, z = r * r;
  double s = -1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = s * z * r + r;
  double c = 1.0 / 20922789888000;
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 1.0 / 2;
  c = c * z + 1;
  const double along = k == 1 || k == 3 ? s : c, across = k == 1 || k == 3 ? c : s;
  cosine = k == 1 || k == 2 ? -along : along;
  sine = k == 2 || k == 3 ? -across : across;
}

/// Sets to[2 i] and to[2 i + 1] to normal_pair(u[i], v[i]) in FP32, with the same bits. The size is fixed and the
/// function inlined, so that it is vectorised for the calling loop.
template <std::size_t Pairs>
__attribute__((always_inline)) inline void normal_pairs(const double* u, const double* v, float* to) {
  constexpr double doubt = 1e-14;  // a relative error larger than that of either way to compute a value
  double radius[Pairs], cosine[Pairs], sine[Pairs];
#ifdef _OPENMP
#pragma omp simd
#endif
  for (std::size_t i = 0; i < Pairs; ++i) {
    radius[i] = -2 * log_of(u[i]);
    turn(2 * std::numbers::pi * v[i], cosine[i], sine[i]);
  }
  for (double& r : radius) r = std::sqrt(r);
  int doubtful = 0;
#ifdef _OPENMP
#pragma omp simd reduction(| : doubtful)
#endif
  for (std::size_t i = 0; i < Pairs; ++i) {
    const double x = radius[i] * cosine[i], y = radius[i] * sine[i];
    to[2 * i] = static_cast<float>(x * (1 - doubt));
    to[2 * i + 1] = static_cast<float>(y * (1 - doubt));
    doubtful |= static_cast<int>(to[2 * i] != static_cast<float>(x * (1 + doubt))) |
                static_cast<int>(to[2 * i + 1] != static_cast<float>(y * (1 + doubt)));
  }
  if (doubtful == 0) return;
  for (std::size_t i = 0; i < Pairs; ++i) {
    const auto pair = normal_pair(u[i], v[i]);
    to[2 * i] = static_cast<float>(pair[0]);
    to[2 * i + 1] = static_cast<float>(pair[1]);
  }
}

}  // namespace comp::native::math
