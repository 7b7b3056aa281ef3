// SPDX-License-Identifier: Apache-2.0
#include <comp_host/dropout.hpp>

#include "agree.hpp"

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

TEST_CASE("a dropout zeroes the same elements as FP64 for any size, and its gradient as well") {
  for (const native::shape& s : {native::shape{1}, {3}, {17}, {33, 999}}) {
    for (const precision p : tested) {
      for (const double rate : {0.0, 0.1, 0.5, 0.999}) {
        CAPTURE(text(s));
        CAPTURE(name(p));
        CAPTURE(rate);
        agree([&](auto& d, results& r) {
          auto x = tensor_of(d, s, 1, p, 0.5F, 1);
          const native::dropout_key key{.seed = 0x123456789abcdefULL, .draw = 0x100000007ULL};
          r.keep(d, "y", d.dropout(x, rate, key), 2);
          r.keep(d, "dx", d.dropout_backward(x, rate, key), 2);
        });
      }
    }
  }
}

TEST_CASE("a dropout keeps about 1-p, differs from draw to draw, and drops all at p = 1") {
  device d;
  const auto x = d.upload(std::vector<float>(100000, 1.0F), {100000}, precision::fp32);
  const auto a = d.download(d.dropout(x, 0.25, {.seed = 1, .draw = 0})),
             b = d.download(d.dropout(x, 0.25, {.seed = 1, .draw = 1}));
  const auto kept = static_cast<double>(std::ranges::count_if(a, [](float v) { return v != 0; }));
  CHECK(std::abs(kept - 75000) < 5 * std::sqrt(100000 * 0.25 * 0.75));
  CHECK(a != b);
  CHECK(d.download(d.dropout(x, 1, {})) == std::vector<float>(100000));
  CHECK_THROWS_WITH_AS(d.dropout(x, 1.5, {}), "dropout with p = 1.5 (it is a probability): use 0 to 1", error);
}

}  // namespace
}  // namespace comp::host::test
