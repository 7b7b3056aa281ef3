// SPDX-License-Identifier: Apache-2.0
// Runs the same calls on the host device and on the FP64 reference device and compares all that they give.
// Inputs and parameters are rounded to the tested precision beforehand, so both start from equal numbers: what may
// differ is one rounding of each result and the FP32 accumulation behind it.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <comp/core/precision.hpp>
#include <comp_host/device.hpp>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../native/reference_device.hpp"

namespace comp::host::test {

namespace reference = native::reference;
inline constexpr std::array tested{precision::fp32, precision::bf16, precision::fp16};

/// The one table of tolerances: |got - wanted| <= rounding |wanted| + accumulation * terms * (largest |wanted|) +
/// smallest.
struct allowance {
  double rounding;      // of the result, relative
  double accumulation;  // of each of the terms added, in FP32 in every precision
  double smallest;      // half a unit of the smallest number that can be stored
};
constexpr allowance allowed(precision p) {
  if (p == precision::bf16) return {1.01 * 0x1p-8, 0x1p-22, 0x1p-134};
  if (p == precision::fp16) return {1.01 * 0x1p-11, 0x1p-22, 0x1p-25};
  return {0x1p-22, 0x1p-22, 0x1p-126};
}

/// What one program gave, in order.
struct results {
  struct one {
    std::string name;
    native::shape extents;
    std::vector<double> values;
    comp::precision precision;
    double terms;
  };
  std::vector<one> all;

  /// `terms`: how many numbers were added up for each element.
  template <class D>
  void keep(D& d, const std::string& name, const typename D::tensor& t, double terms = 1) {
    const auto v = d.download(t);
    all.push_back({name, t.shape(), {v.begin(), v.end()}, t.precision(), terms});
  }
  template <class D>
  void keep_gradient(D& d, const std::string& name, typename D::parameter& p, double terms) {
    const auto v = d.gradient(p);
    all.push_back({name, d.shape_of(p), {v.begin(), v.end()}, comp::precision::fp32, terms});
  }
  template <class D>
  void keep_values(D& d, const std::string& name, typename D::parameter& p, double terms = 1) {
    const auto v = d.values(p);
    all.push_back({name, d.shape_of(p), {v.begin(), v.end()}, comp::precision::fp32, terms});
  }
  void keep_number(const std::string& name, double number, double terms = 1) {
    all.push_back({name, {1}, {number}, comp::precision::fp32, terms});
  }
};

/// The largest share of its tolerance that an element uses; infinite where one is NaN and the other is not.
inline double worst_share(const results::one& got, const results::one& wanted) {
  const allowance a = allowed(got.precision);
  double largest = 0, worst = 0;
  for (const double w : wanted.values) largest = std::isfinite(w) ? std::max(largest, std::abs(w)) : largest;
  for (std::size_t i = 0; i < wanted.values.size(); ++i) {
    const double w = wanted.values[i], g = got.values[i];
    if (w == g || (std::isnan(w) && std::isnan(g))) continue;
    const double share =
        std::abs(g - w) / (a.rounding * std::abs(w) + a.accumulation * got.terms * largest + a.smallest);
    worst = std::isnan(share) ? INFINITY : std::max(worst, share);
  }
  return worst;
}
inline void check_equal_results(const results& got, const results& wanted) {
  REQUIRE(got.all.size() == wanted.all.size());
  for (std::size_t i = 0; i < got.all.size(); ++i) {
    CAPTURE(got.all[i].name);
    CHECK(got.all[i].extents == wanted.all[i].extents);
    CHECK(got.all[i].precision == wanted.all[i].precision);
    REQUIRE(got.all[i].values.size() == wanted.all[i].values.size());
    CHECK(worst_share(got.all[i], wanted.all[i]) <= 1.0);
  }
}

/// Runs `program(device, results&)` on both devices, the host's with BF16 primitives and without, and with 1 and 2
/// threads.
template <class Program>
void agree(Program program) {
  reference::device oracle;
  results wanted;
  program(oracle, wanted);
  for (const settings& chosen : {settings{.threads = 2}, settings{.threads = 1, .native_bf16 = false}}) {
    CAPTURE(chosen.threads);
    CAPTURE(chosen.native_bf16);
    device host{chosen};
    results got;
    program(host, got);
    check_equal_results(got, wanted);
  }
}

/// Reproducible numbers in [low, high), rounded to `p`.
inline std::vector<float> numbers(std::int64_t n, unsigned seed, precision p = precision::fp32, float low = -1,
                                  float high = 1) {
  std::mt19937 random{seed};
  std::uniform_real_distribution<float> draw{low, high};
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = draw(random);
  round_all(v.data(), p, v.size());
  return v;
}
template <class D>
typename D::tensor tensor_of(D& d, const native::shape& s, unsigned seed, precision p, float low = -1, float high = 1) {
  return d.upload(numbers(native::elements(s), seed, p, low, high), s, p);
}
template <class D>
typename D::parameter parameter_of(D& d, const native::shape& s, unsigned seed, precision p, float low = -1,
                                   float high = 1) {
  return d.make_parameter(numbers(native::elements(s), seed, p, low, high), s);
}
/// Zeroes the gradients, as the trainer does at the start of a step.
template <class D, class... Parameters>
void fresh(D& d, Parameters&... all) {
  (d.zero_gradient(all), ...);
}

}  // namespace comp::host::test
