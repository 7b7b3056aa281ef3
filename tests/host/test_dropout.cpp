// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp_host/dropout.hpp>
#include <cstdint>
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

}  // namespace
}  // namespace comp::host::test
