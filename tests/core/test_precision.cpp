// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp/core/precision.hpp>
#include <set>

using comp::precision;

namespace {

// The largest value and rounding error that a format of these bits has, from IEEE 754's rules.
double largest_by_bits(const comp::precision_traits& t) {
  const int bias = (1 << (t.exponent_bits - 1)) - 1;
  return std::ldexp(2 - std::ldexp(1.0, -t.fraction_bits), bias);
}

}  // namespace

TEST_CASE("the letters 0 and 1 of the paper are FP16 and FP32") {
  CHECK(comp::letter(precision::fp16) == '0');
  CHECK(comp::letter(precision::fp32) == '1');
}

TEST_CASE("each precision has a letter and a name of its own, and both lead back to it") {
  std::set<char> letters;
  std::set<std::string_view> names;
  for (const auto p : comp::all_precisions) {
    CAPTURE(comp::name(p));
    CHECK(letters.insert(comp::letter(p)).second);
    CHECK(names.insert(comp::name(p)).second);
    CHECK(comp::precision_of(comp::letter(p)) == p);
    CHECK(comp::precision_of(comp::name(p)) == p);
  }
  CHECK(letters.size() == comp::precision_letters.size());
}

TEST_CASE("what is no letter and no name is no precision") {
  for (const char c : {'x', 'D', 'T', '2', ' ', '\0', '\xff'}) CHECK_FALSE(comp::precision_of(c).has_value());
  for (const std::string_view name : {"", "fp", "FP32", "fp32 ", "fp8"})
    CHECK_FALSE(comp::precision_of(name).has_value());
}

TEST_CASE("the table's limits follow from the bits of each format") {
  for (const auto p : comp::all_precisions) {
    const auto t = comp::traits(p);
    CAPTURE(t.name);
    CHECK(t.half_ulp == std::ldexp(1.0, -t.fraction_bits - 1));
    if (t.exponent_bits == 4) {
      CHECK(t.largest ==
            448);  // has no infinity: one more exponent, less its last fraction, which is NaN (OCP FP8 1.0)
    } else if (t.exponent_bits == 2) {
      CHECK(t.largest == 2 * largest_by_bits(t));  // neither infinity nor NaN: one more exponent (OCP MX 1.0)
    } else {
      CHECK(t.largest == largest_by_bits(t));
    }
    const int stored = p == precision::tf32 || p == precision::bf16_fp32 ? 32 : 1 + t.exponent_bits + t.fraction_bits;
    CHECK(8 * t.bytes == stored);
  }
}

TEST_CASE("every format but FP64 and FP32 is low, and those below 16 bits are scaled") {
  for (const auto p : comp::all_precisions) {
    CHECK(comp::is_low(p) == (p != precision::fp32 && p != precision::fp64));
    const bool below_16_bits = std::string_view{"01btdB"}.find(comp::letter(p)) == std::string_view::npos;
    CHECK(comp::is_scaled(p) == below_16_bits);
  }
  CHECK(comp::names_of(comp::all_precisions).starts_with("fp32, tf32, bf16, fp16"));
}

TEST_CASE("letters and names are known at compile time") {
  static_assert(comp::precision_of('b') == precision::bf16);
  static_assert(comp::precision_of("fp8_e5m2") == precision::fp8_e5m2);
  static_assert(!comp::precision_of('x'));
}
