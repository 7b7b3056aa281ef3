// SPDX-License-Identifier: Apache-2.0
// What tests of kernels share: memory, values in each format, and the comparison with FP64 within the rounding of the
// format. The tests run on the SIMT shim and on a GPU; what only the shim can show is inside #ifdef COMP_SIMT.
#pragma once

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <comp_cuda/kernels.hpp>
#include <comp_native/math/formats.hpp>
#include <cstring>
#include <random>
#include <vector>

#ifndef COMP_SIMT
#include "device_buffer.hpp"
#endif

namespace comp::cuda::test {

#ifdef COMP_SIMT
using simt::buffer;
#endif

template <class T>
inline constexpr precision format = precision::fp32;
template <>
inline constexpr precision format<bf16> = precision::bf16;
template <>
inline constexpr precision format<fp16> = precision::fp16;

template <class T>
inline constexpr double half_ulp = 0x1p-24;
template <>
inline constexpr double half_ulp<bf16> = 0x1p-8;
template <>
inline constexpr double half_ulp<fp16> = 0x1p-11;

template <class T>
std::vector<T> rounded(const std::vector<float>& from) {
  std::vector<T> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) native::math::store(to[i], from[i]);
  return to;
}
template <class T>
std::vector<double> exact(const std::vector<T>& from) {
  std::vector<double> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<double>(native::math::load(from[i]));
  return to;
}
inline std::vector<float> normal(std::size_t n, unsigned seed, float scale = 1) {
  std::mt19937 engine{seed};
  std::normal_distribution<float> draw{0, scale};
  std::vector<float> v(n);
  for (float& x : v) x = draw(engine);
  return v;
}
template <class T>
std::vector<T> values(std::size_t n, unsigned seed, float scale = 1) {
  return rounded<T>(normal(n, seed, scale));
}

/// Equal in bits, NaN included.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
inline void check_same_bits(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], want[i]));
}

/// Device memory with the values beside it in FP64. shift: how many elements off a 256-byte boundary.
template <class T>
struct input {
  std::vector<T> host;
  std::vector<double> value;
  buffer<T> device;
  explicit input(std::vector<T> v, std::size_t shift = 0)
      : host{std::move(v)}, value{exact(host)}, device{host, shift} {}
  T* data() const { return device.data(); }
};

/// Each got value is within `ulps` half units of its format, and `absolute`, of the wanted one.
template <class T>
void check_close(const std::vector<T>& got, const std::vector<double>& want, double ulps = 1.01, double absolute = 0) {
  REQUIRE(got.size() == want.size());
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double g = static_cast<double>(native::math::load(got[i]));
    const double smallest = std::is_same_v<T, fp16> ? 0x1p-25 : 0x1p-149;  // subnormals have fewer digits
    const double allowed = ulps * (std::abs(want[i]) * half_ulp<T> + smallest) + absolute;
    const double off = std::isfinite(g) && std::isfinite(want[i])               ? std::abs(g - want[i]) / allowed
                       : g == want[i] || (std::isnan(g) && std::isnan(want[i])) ? 0
                                                                                : 1e30;
    if (off > worst) worst = off, at = i;
  }
  if (worst > 1) {
    FAIL_CHECK("element " << at << " of " << got.size() << ": got " << native::math::load(got[at]) << ", want "
                          << want[at] << ", off by " << worst << " of what is allowed");
  }
  CHECK(worst <= 1);
}

/// Every count of elements at which a pack, a warp, a block or a piece begins or ends.
inline const std::vector<std::size_t> sizes = {0, 1, 2, 7, 8, 9, 31, 33, 255, 256, 257, 2049};
/// Widths of rows for each way to divide them: packed and not, a warp or a block, kept or read again.
inline const std::vector<std::size_t> widths = {1, 3, 8, 31, 32, 100, 136, 511, 1000, 1023, 1024, 1025, 1032, 8200};

}  // namespace comp::cuda::test
