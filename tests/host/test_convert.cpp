// SPDX-License-Identifier: Apache-2.0
#include <comp_host/convert.hpp>
#include <cstring>

#include "../native/devices/agree.hpp"

namespace comp::host::test {

using namespace native::contract;

namespace {

/// The FP16 nearest to x, found by trying: the definition of rounding to nearest, ties to even.
std::uint16_t nearest_fp16(float x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(x));
  if (magnitude >= 65520) return sign | 0x7c00;
  std::uint16_t low = 0, high = 0x7bff;  // finite patterns are ordered as their values
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (fp16_value(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - fp16_value(low), above = fp16_value(high) - magnitude;
  const bool up = below > above || (below == above && (low & 1));
  return sign | (up ? high : low);
}

TEST_CASE("every FP16 pattern survives the way to FP32 and back, by loops and by instructions") {
  std::vector<fp16> all(65536), back(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> wide(65536);
  convert(all.data(), wide.data(), all.size());
  convert(wide.data(), back.data(), wide.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float by_hand = fp16_value(all[i].bits);
    REQUIRE(std::memcmp(&by_hand, &wide[i], sizeof(float)) == 0);
    if (!std::isnan(by_hand)) REQUIRE(back[i].bits == all[i].bits);
    REQUIRE(fp16_bits(by_hand) == back[i].bits);
  }
}

#if COMP_HOST_DISPATCH
TEST_CASE("the instructions of each vector unit convert whole vectors as loops do, and nothing behind them") {
  const std::vector<float> from = numbers(64, 1, precision::fp32, -70000, 70000);
  std::vector<fp16> halves(64);
  detail::convert_scalar(from.data(), halves.data(), 64);
  const auto check = [&](std::size_t lanes, const auto& convert) {
    for (std::size_t n = 0; n <= 40; ++n) {
      CAPTURE(n);
      std::vector<fp16> narrowed(64);
      std::vector<float> wide(64), expected(64);
      REQUIRE(convert(from.data(), narrowed.data(), n) == n / lanes * lanes);
      REQUIRE(convert(halves.data(), wide.data(), n) == n / lanes * lanes);
      detail::convert_scalar(halves.data(), expected.data(), n / lanes * lanes);
      CHECK(wide == expected);
      for (std::size_t i = 0; i < 64; ++i) CHECK(narrowed[i].bits == (i < n / lanes * lanes ? halves[i].bits : 0));
    }
  };
  if (widest_unit() == vector_unit::avx512) check(16, [](auto... a) { return detail::convert_avx512(a...); });
  if (detail::has_f16c()) check(8, [](auto... a) { return detail::convert_f16c(a...); });
}
#endif

TEST_CASE("FP32 is rounded to the nearest FP16, ties to even") {
  std::vector<float> from = numbers(4096, 1, precision::fp32, -70000, 70000);
  for (const float x : numbers(4096, 2, precision::fp32, -1e-4F, 1e-4F)) from.push_back(x);
  for (std::uint16_t i = 0; i < 0x7bff; ++i)
    from.push_back((fp16_value(i) + fp16_value(static_cast<std::uint16_t>(i + 1))) / 2);
  for (const float x :
       {65504.0F, 65519.99F, 65520.0F, 1e9F, -65520.0F, 0x1p-25F, 0x1.000002p-25F, -0x1p-24F, 0.0F, -0.0F, 1e-40F})
    from.push_back(x);
  std::vector<fp16> to(from.size());
  convert(from.data(), to.data(), from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    CAPTURE(from[i]);
    REQUIRE(to[i].bits == nearest_fp16(from[i]));
    REQUIRE(fp16_bits(from[i]) == nearest_fp16(from[i]));
  }
}

}  // namespace
}  // namespace comp::host::test
