// SPDX-License-Identifier: Apache-2.0
// What any Device must do: runs the same calls on the tested device and on the FP64 reference device and compares all
// that they give. Which device that is, its variants and what it may do otherwise is said by the tested_device.hpp that
// is found first; these files are compiled once for each.
// Inputs and parameters are rounded to the tested precision beforehand, so both start from equal numbers: what may
// differ is one rounding of each result and the FP32 accumulation behind it.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/precision.hpp>
#include <comp_native/device.hpp>
#include <comp_native/math/formats.hpp>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "../reference_device.hpp"
#include "tested_device.hpp"

namespace comp::native::contract {

using tested::device;

/// "(2,3)".
inline std::string text(const shape& s) {
  std::string all = "(";
  for (std::size_t i = 0; i < s.size(); ++i) all += fmt::format("{}{}", i ? "," : "", s[i]);
  return all + ")";
}

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
    shape extents;
    std::vector<double> values;
    comp::precision precision;
    double terms;
    double addend = 0;
  };
  std::vector<one> all;

  /// `terms`: how many numbers were added up for each element; `rounded`: what a gradient was rounded to before FP32.
  /// `addend`: the largest that was added after a first rounding; 0: there was one only.
  template <class D>
  void keep(D& d, const std::string& name, const typename D::tensor& t, double terms = 1, double addend = 0) {
    const auto v = d.download(t);
    all.push_back({name, t.shape(), {v.begin(), v.end()}, t.precision(), terms, addend});
  }
  template <class D>
  void keep_gradient(D& d, const std::string& name, typename D::parameter& p, double terms,
                     comp::precision rounded = comp::precision::fp32, double addend = 0) {
    const auto v = d.gradient(p);
    all.push_back({name, d.shape_of(p), {v.begin(), v.end()}, rounded, terms, addend});
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

/// The largest share of its tolerance that an element uses; infinite if one is NaN and the other is not.
inline double worst_share(const results::one& got, const results::one& wanted) {
  const allowance a = allowed(got.precision);
  double largest = 0, worst = 0;
  for (const double w : wanted.values) largest = std::isfinite(w) ? std::max(largest, std::abs(w)) : largest;
  for (std::size_t i = 0; i < wanted.values.size(); ++i) {
    const double w = wanted.values[i], g = got.values[i];
    if (w == g || (std::isnan(w) && std::isnan(g))) continue;
    const double before = got.addend > 0 ? std::abs(w) + got.addend : 0;  // what was rounded before the addition
    const double share =
        std::abs(g - w) / (a.rounding * (std::abs(w) + before) + a.accumulation * got.terms * largest + a.smallest);
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

/// Runs `program(device, results&)` on the reference and on `d`.
void agree_on(device& d, auto program) {
  reference::device oracle;
  results wanted, got;
  program(oracle, wanted);
  program(d, got);
  check_equal_results(got, wanted);
}
/// Runs `program(device, results&)` on the reference and on each variant of the tested device.
void agree(auto program) {
  reference::device oracle;
  results wanted;
  program(oracle, wanted);
  tested::each_variant([&](device& d) {
    results got;
    program(d, got);
    check_equal_results(got, wanted);
  });
}

/// Runs `program(device, results&, case, precision)` for each case, which is a shape or has that of its input, in each
/// precision of the tested device.
template <class Case>
void agree_for(const std::vector<Case>& cases, auto program) {
  for (const Case& s : cases) {
    for (const precision p : tested::precisions) {
      if constexpr (requires { s.x; }) {
        INFO(text(s.x), " in ", name(p));
        agree([&](auto& d, results& r) { program(d, r, s, p); });
      } else {
        INFO(text(s), " in ", name(p));
        agree([&](auto& d, results& r) { program(d, r, s, p); });
      }
    }
  }
}
/// Checks that `f` is refused with these words.
void refuses(const char* words, auto f) { CHECK_THROWS_WITH_AS((void)f(), doctest::Contains(words), error); }

/// To the nearest number of `p`, ties to even.
inline float rounded(float v, precision p) {
  if (p == precision::tf32) {
    const auto bits = std::bit_cast<std::uint32_t>(v);
    return std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffU);
  }
  if (p == precision::fp32) return v;
  const auto through = [v](auto to) {
    math::store(to, v);
    return math::load(to);
  };
  return p == precision::bf16 ? through(math::bf16{}) : through(math::fp16{});
}

/// Reproducible numbers in [low, high), rounded to `p`.
inline std::vector<float> numbers(std::int64_t n, unsigned seed, precision p = precision::fp32, float low = -1,
                                  float high = 1) {
  std::mt19937 random{seed};
  std::uniform_real_distribution<float> draw{low, high};
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = rounded(draw(random), p);
  return v;
}
template <class D>
typename D::tensor tensor_of(D& d, const shape& s, unsigned seed, precision p, float low = -1, float high = 1) {
  return d.upload(numbers(elements(s), seed, p, low, high), s, p);
}
template <class D>
typename D::parameter parameter_of(D& d, const shape& s, unsigned seed, precision p, float low = -1, float high = 1) {
  return d.make_parameter(numbers(elements(s), seed, p, low, high), s);
}
/// Each count of elements at which a pack, a warp, a block or a piece of one begins or ends.
inline const std::vector<shape> sizes{{1}, {2}, {7}, {8}, {9}, {31}, {33}, {255}, {256}, {257}, {2049}};
/// Rows of a width for each way to divide them: packed and not, a warp or a block, kept or read again.
inline const std::vector<shape> rows{{9, 8},    {9, 31},   {9, 32},   {9, 100},  {9, 136},  {2, 511},
                                     {2, 1000}, {2, 1023}, {2, 1024}, {2, 1025}, {2, 1032}, {2, 8200}};
inline std::vector<shape> with(std::vector<shape> some, const std::vector<shape>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}
/// Zeroes the gradients, as the trainer does at the start of a step.
template <class D, class... Parameters>
void fresh(D& d, Parameters&... all) {
  (d.zero_gradient(all), ...);
}

/// One forward and backward of a small net; all that it gave, as bytes.
inline std::vector<float> one_step(device& d, precision p) {
  auto k = parameter_of(d, {17, 3, 3, 3}, 1, p), w = parameter_of(d, {10, 17 * 16}, 2, p),
       gamma = parameter_of(d, {17}, 3, p), beta = parameter_of(d, {17}, 4, p), mean = parameter_of(d, {17}, 5, p),
       variance = parameter_of(d, {17}, 6, p, 0.5F, 1);
  const auto x = tensor_of(d, {4, 3, 8, 8}, 7, p);
  const auto target = d.upload(std::vector<std::int32_t>{1, 2, 3, 4}, {4});
  double loss = 0;
  const auto y = d.conv2d(x, k, nullptr, {.padding = {1, 1}});
  const auto n = d.batch_norm(y, gamma, beta, mean, variance, {});
  const auto a = d.activate(activation::relu, n.output);
  const auto m = d.max_pool2d(a, {});
  const auto flat = d.reshape(m.output, {4, 17 * 16});
  const auto e = d.cross_entropy(d.linear(flat, w, nullptr), target, &loss);
  const auto back = d.linear_backward(d.cross_entropy_backward(e.saved, target, 1), flat, w, nullptr, true);
  const auto dn = d.activate_backward(
      activation::relu, d.max_pool2d_backward(d.reshape(back, m.output.shape()), a, m.saved, {}), n.output, a);
  const auto dx = d.conv2d_backward(d.batch_norm_backward(dn, y, n.saved, gamma, beta, {}), x, k, nullptr,
                                    {.padding = {1, 1}}, true);
  auto all = d.download(dx);
  for (auto* q : {&k, &w, &gamma, &beta}) {
    const auto g = d.gradient(*q);
    all.insert(all.end(), g.begin(), g.end());
  }
  all.push_back(static_cast<float>(loss));
  return all;
}

}  // namespace comp::native::contract
