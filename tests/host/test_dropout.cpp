// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp_host/device.hpp>
#include <comp_host/dropout.hpp>
#include <cstdint>
#include <limits>
#include <vector>

namespace comp::host::test {

namespace {

TEST_CASE("Philox gives the published words") {  // Random123's kat_vectors, philox4x32 10
  const auto words = [](std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3, std::uint32_t k0,
                        std::uint32_t k1) {
    std::uint32_t word[4][1] = {{c0}, {c1}, {c2}, {c3}};
    native::math::philox(word, k0, k1);
    return std::vector{word[0][0], word[1][0], word[2][0], word[3][0]};
  };
  CHECK(words(0, 0, 0, 0, 0, 0) == std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words(~0U, ~0U, ~0U, ~0U, ~0U, ~0U) ==
        std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0) ==
        std::vector<std::uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("normal numbers are those of a stream, bit for bit, for any number of threads") {
  for (const shape& s : {shape{1, 1}, shape{3, 5}, shape{16, 8}, shape{7, 333}, shape{1000, 1001}}) {
    for (const int threads : {1, 2, 3}) {
      CAPTURE(native::text(s));
      CAPTURE(threads);
      device d{{.threads = threads}};
      native::random_stream draws{5, 9};
      std::vector<float> expected(static_cast<std::size_t>(elements(s)));
      for (float& x : expected) x = static_cast<float>(draws.normal());
      CHECK(d.download(d.normal({.seed = 5, .draw = 9}, s, precision::fp32)) == expected);
      CHECK(d.download(d.normal({.seed = 5, .draw = 9}, s, precision::bf16)) ==
            d.download(d.upload(expected, s, precision::bf16)));
    }
  }
}

TEST_CASE("a dropout zeroes what it drops, and be it infinite or no number") {
  device d;
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const precision p : {precision::fp32, precision::bf16}) {
    for (const float x : {infinity, -infinity, nan}) {
      const auto ones = d.download(d.dropout(d.upload(std::vector<float>(300, 1), {300}, p), 0.5, {})),
                 y = d.download(d.dropout(d.upload(std::vector<float>(300, x), {300}, p), 0.5, {}));
      for (std::size_t i = 0; i < y.size(); ++i) CHECK((ones[i] == 0 ? y[i] == 0 : !std::isfinite(y[i])));
    }
  }
}

}  // namespace
}  // namespace comp::host::test
