// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <comp/core/random_rounding.hpp>
#include <cstdint>
#include <limits>
#include <set>

namespace {

float rounded(float x, std::uint32_t random) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(comp::bf16_at_random(x, random)) << 16);
}

}  // namespace

TEST_CASE("rounding at random goes to one of both neighbours, as often as keeps the mean") {
  for (const float x : {1.001F, -3.1415927F, 1e-30F, 1e-40F, -65504.3F}) {
    CAPTURE(x);
    double mean = 0;
    std::set<float> neighbours;
    for (std::uint32_t r = 0; r < 65536; ++r) {
      neighbours.insert(rounded(x, r));
      mean += rounded(x, r) / 65536.0;
    }
    CHECK(neighbours.size() == 2);
    CHECK(*neighbours.begin() < x);
    CHECK(*neighbours.rbegin() > x);
    CHECK(mean == doctest::Approx(x).epsilon(1e-6));
  }
}

TEST_CASE("what BF16 holds stays, and so do infinity and NaN") {
  for (const float x : {0.0F, -0.0F, 1.0F, -1.5F, 0x1p-133F, std::numeric_limits<float>::infinity()}) {
    for (const std::uint32_t r : {0U, 1U, 0x8000U, 0xffffU, 0xffffffffU}) {
      CHECK(std::bit_cast<std::uint32_t>(rounded(x, r)) == std::bit_cast<std::uint32_t>(x));
    }
  }
  for (const std::uint32_t bits : {0x7fffffffU, 0x7f800001U, 0xffffffffU})
    CHECK(std::isnan(rounded(std::bit_cast<float>(bits), 0xffff)));
}

TEST_CASE("random words are even, and differ from element to element and from key to key") {
  std::uint64_t ones = 0, same = 0, next = 0;
  constexpr std::uint32_t n = 1 << 16;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint64_t key = comp::mix_key(7, 3), other = comp::mix_key(7, 4);
    const std::uint32_t word = comp::random_word(key, i);
    ones += static_cast<std::uint64_t>(std::popcount(word));
    same += static_cast<std::uint64_t>(std::popcount(word ^ comp::random_word(other, i)));
    next += static_cast<std::uint64_t>(std::popcount(word ^ comp::random_word(key, i + 1)));
  }
  const double deviation = std::sqrt(32.0 * n) / 2;
  for (const std::uint64_t sum : {ones, same, next})
    CHECK(std::abs(static_cast<double>(sum) - 16.0 * n) < 5 * deviation);
}
