// SPDX-License-Identifier: Apache-2.0
// What the tests of cuDNN's operators share: a fresh machine, values of few bits, and the comparison with FP64.
#pragma once

#include <comp_cuda/device.hpp>
#include <comp_cuda/dnn.hpp>
#include <string>
#include <type_traits>

#include "../native/devices/agree.hpp"
#include "kernel_test.hpp"

namespace comp::cuda::test {

/// A fresh machine with a fresh cuDNN for each test; what the test leaves behind is a failure.
struct fresh_dnn {
  fresh_dnn() {
    simt::device = {};
    simt::dnn = {};
  }
  ~fresh_dnn() {
    CHECK_NOTHROW(simt::device.reset());
    CHECK(simt::dnn_objects.empty());
    simt::dnn_objects.clear();
    simt::dnn = {};
  }
};

inline constexpr precision precisions[] = {precision::fp32, precision::tf32, precision::bf16, precision::fp16};

/// Multiples of 1/16 between -2 and 2: exact in every precision, and their products in FP32.
inline std::vector<float> coarse(std::int64_t n, unsigned seed) {
  std::mt19937 engine{seed};
  std::uniform_int_distribution<int> draw{-32, 32};
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = static_cast<float>(draw(engine)) / 16;
  return v;
}

/// Numbers as all devices get them, which lie in an order on this one.
template <class D>
typename D::tensor laid(D& d, const shape& s, unsigned seed, precision p, order places) {
  const auto plain = native::contract::tensor_of(d, s, seed, p);
  if constexpr (std::is_same_v<D, device>) {
    return in_order(d.shared(), plain, places);
  } else {
    return plain;
  }
}

/// Each value is off by at most a rounding to precision p, `more` roundings of what may be as large as the largest
/// value, and what FP32 loses in sums.
inline void check_near(const std::vector<float>& got, const std::vector<double>& want, precision p, double more = 0) {
  REQUIRE(got.size() == want.size());
  const double unit = storage_of(p) == storage::fp32 ? 0x1p-24 : traits(p).half_ulp;
  double largest = 0, worst = 0;
  for (const double v : want) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double allowed = 1.01 * unit * std::abs(want[i]) + (more * unit + 1e-6) * largest + 0x1p-25;
    const double off = std::abs(static_cast<double>(got[i]) - want[i]) / allowed;
    worst = std::isfinite(got[i]) ? std::max(worst, off) : 1e30;
  }
  CHECK(worst <= 1);
}

/// The words of the error that f throws, without the place: "... failed at file:line (...)".
template <class Error, class F>
std::string refused_with(F f) {
  try {
    f();
  } catch (const Error& e) {
    std::string words = e.what();
    const auto place = words.find(" failed at ");
    if (place != std::string::npos) words.erase(place + 7, words.find(" (", place) - place - 7);
    return words;
  }
  return "nothing was refused";
}

}  // namespace comp::cuda::test
