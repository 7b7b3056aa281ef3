// SPDX-License-Identifier: Apache-2.0
// Values that are counted in blocks are those that are counted one by one.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <comp/doctor/values.hpp>
#include <limits>
#include <random>
#include <vector>

using comp::precision;
using comp::value_counts;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

value_counts one_by_one(const std::vector<float>& values) {
  std::array<double, comp::all_precisions.size()> overflows_from{};
  for (const precision p : comp::all_precisions) overflows_from[static_cast<std::size_t>(p)] = comp::overflows_from(p);
  value_counts c;
  for (const float x : values) {
    const float size = std::abs(x);
    ++c.values;
    c.bits += std::bit_cast<std::uint32_t>(x);
    c.nans += std::isnan(x);
    c.infinities += std::isinf(x);
    if (!std::isfinite(x)) continue;
    c.zeros += x == 0;
    c.sum += static_cast<double>(size);
    const int exponent = x == 0 || size < 0x1p-126F ? value_counts::lowest_exponent : std::ilogb(size);
    ++c.exponents[static_cast<std::size_t>(exponent - value_counts::lowest_exponent)];
    for (std::size_t p = 0; p < overflows_from.size(); ++p)
      c.overflows[p] += static_cast<double>(size) >= overflows_from[p];
    if (x == 0) continue;
    c.smallest = c.largest > 0 ? std::min(c.smallest, size) : size;
    c.largest = std::max(c.largest, size);
  }
  return c;
}

void check_same(const value_counts& got, value_counts wanted) {
  CHECK(got.sum == doctest::Approx(wanted.sum).epsilon(1e-5));
  wanted.sum = got.sum;
  CHECK((got == wanted));
}

}  // namespace

TEST_CASE("counts of any length, magnitude and with anything that is not finite are those of one value at a time") {
  std::mt19937 random{4};
  for (const std::size_t n : {0, 1, 15, 16, 17, 4095, 4096, 4097, 20'000}) {
    CAPTURE(n);
    for (const int spread : {0, 3, 20, 140}) {
      CAPTURE(spread);
      std::uniform_real_distribution<float> fraction{-2, 2},
          exponent{static_cast<float>(-spread), static_cast<float>(spread)};
      std::vector<float> values(n);
      for (float& x : values)
        x = random() % 5 == 0 ? 0.0F : std::ldexp(fraction(random), static_cast<int>(exponent(random)));
      check_same(comp::counted(values), one_by_one(values));
      for (float& x : values) {
        if (random() % 100 == 0) x = random() % 2 == 0 ? nan_value : -infinity;
      }
      check_same(comp::counted(values), one_by_one(values));
    }
  }
}

TEST_CASE("values at the largest sum of a block do not overflow it") {
  const std::vector<float> values(4096, std::numeric_limits<float>::max());
  CHECK(comp::counted(values).sum == doctest::Approx(4096 * 3.4028234e38));
  CHECK(comp::counted(values).overflow(precision::bf16) == 4096);
}

TEST_CASE("parts that are merged are the whole") {
  std::mt19937 random{4};
  std::normal_distribution<float> normal;
  std::vector<float> values(9000);
  for (float& x : values) x = normal(random);
  value_counts parts = comp::counted(std::span{values}.first(5000));
  parts.merge(comp::counted(std::span{values}.subspan(5000)));
  check_same(parts, one_by_one(values));
  value_counts with_nothing = parts;
  with_nothing.merge({});
  CHECK((with_nothing == parts));
}

TEST_CASE("what a format loses is told at its very borders") {
  CHECK(comp::smallest_subnormal(precision::fp16) == 0x1p-24);
  CHECK(comp::overflows_from(precision::fp16) == 65520);
  CHECK(comp::overflows_from(precision::fp8_e4m3) == 464);
  CHECK(comp::overflows_from(precision::fp8_e5m2) == 61440);
  const value_counts c =
      comp::counted(std::vector<float>{0, 0x1.8p-26F, 0x1p-25F, 0x1p-24F, 0x1p-14F, 65519, 65520, -1e9F});
  CHECK(c.counted() == 7);
  CHECK(c.vanish(precision::fp16) == 1);
  CHECK(c.subnormal(precision::fp16) == 3);
  CHECK(c.overflow(precision::fp16) == 2);
  CHECK(c.vanish(precision::bf16) == 0);
  CHECK(c.overflow(precision::bf16) == 0);
  CHECK(c.vanish(precision::fp8_e4m3) == 4);
  CHECK(c.overflow(precision::fp8_e4m3) == 3);
}
