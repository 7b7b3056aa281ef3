// SPDX-License-Identifier: Apache-2.0
// Rounds FP32 numbers at random to BF16 and to blocks of E4M3, by core/random_rounding.hpp, in vectors as wide as the
// CPU's.
#pragma once

#include <algorithm>
#include <comp/core/random_rounding.hpp>
#include <comp_libtorch/kernels/relu.hpp>
#include <comp_libtorch/kernels/vectors.hpp>
#include <comp_libtorch/support/parallel.hpp>
#include <cstdint>
#include <cstring>

namespace comp::libtorch::detail {

/// Gives random_word(key, element) for the elements from `at` on.
template <int lanes>
COMP_LIBTORCH_INLINE void draw(std::uint64_t key, std::int64_t at, typename vectors<lanes>::words& random) {
  const auto low = static_cast<std::uint32_t>(key) + static_cast<std::uint32_t>(at);
  for (int lane = 0; lane < lanes; ++lane) random[lane] = low + static_cast<std::uint32_t>(lane);
  random = ((random ^ random >> 16) * 0x7feb352dU) ^ static_cast<std::uint32_t>(key >> 32);
  random = (random ^ random >> 15) * 0x846ca68bU;
  random ^= random >> 16;
}

/// Rounds `numbers` numbers, of which the first is element `at`, by the bits of random_word(key, element) from `shift`
/// on.
inline void round_at_random(const float* from, std::uint16_t* to, std::int64_t numbers, std::int64_t at,
                            std::uint64_t key, unsigned shift) {
  by_vectors(
      numbers, [=](auto lanes, std::int64_t i) __attribute__((always_inline)) {
        typename vectors<lanes>::floats x;
        typename vectors<lanes>::words bits, random;
        load(from + i, x);
        std::memcpy(&bits, &x, sizeof bits);
        draw<lanes>(key, at + i, random);
        bits = x == x ? bits + (random >> shift & 0xffffU) : bits | 0x400000U;  // NaN stays NaN
        store(__builtin_convertvector(bits >> 16, typename vectors<lanes>::halves), to + i);
      });
}
inline void widen_all(const std::uint16_t* from, float* to, std::int64_t numbers) {
  by_vectors(
      numbers, [=](auto lanes, std::int64_t i) __attribute__((always_inline)) {
        typename vectors<lanes>::floats wide;
        load_bf16<lanes>(from + i, wide);
        store(wide, to + i);
      });
}

/// Calls body(lanes, block) for the blocks of so many numbers.
void by_blocks(std::int64_t numbers, const auto& body) {
  const auto blocks = static_cast<std::int64_t>(blocks_of(static_cast<std::size_t>(numbers)));
  in_parallel(blocks, 128, [&](std::int64_t first, std::int64_t last) {
    run_widest([&](auto lanes) __attribute__((always_inline)) {
      for (std::int64_t block = first; block < last; ++block) body(lanes, block);
    });
  });
}

/// As round_at_random, to blocks: a block's codes, and then its scale. `above_zero`: what is above 0 stays so.
inline void round_blocks_at_random(const float* from, std::uint8_t* to, std::int64_t numbers, std::int64_t at,
                                   std::uint64_t key, unsigned shift, bool above_zero) {
  constexpr std::int64_t values = values_of_block;
  by_blocks(
      numbers, [=](auto lanes, std::int64_t block) __attribute__((always_inline)) {
        using floats = typename vectors<lanes>::floats;
        using words = typename vectors<lanes>::words;
        alignas(64) float filled[values] = {};
        const float* x = from + block * values;
        if (const std::int64_t here = numbers - block * values; here < values) {
          std::copy_n(x, here, filled);
          x = filled;
        }
        words bits, largest{};
        for (std::int64_t i = 0; i < values; i += lanes) {
          load(x + i, bits);
          bits &= 0x7fffffffU;
          largest = bits > largest ? bits : largest;
        }
        std::uint32_t most = 0;
        for (int lane = 0; lane < lanes; ++lane) most = std::max(most, largest[lane]);
        const float scale = scale_of_block(most);
        std::uint8_t* const codes = to + block * static_cast<std::int64_t>(bytes_of_block);
        for (std::int64_t i = 0; i < values; i += lanes) {
          floats magnitude;
          words random, code;
          load(x + i, bits);
          const words sign = bits >> 24 & 0x80U;
          bits &= 0x7fffffffU;
          std::memcpy(&magnitude, &bits, sizeof bits);
          magnitude /= scale;
          draw<lanes>(key, at + block * values + i, random);
          random = random >> shift & 0xffffU;
          round_to_e4m3(magnitude, random, above_zero ? 1 : 0, code);
          store(__builtin_convertvector(code | sign, typename vectors<lanes>::bytes), codes + i);
        }
        std::memcpy(codes + values, &scale, sizeof scale);
      });
}
inline void widen_blocks(const std::uint8_t* from, float* to, std::int64_t numbers) {
  constexpr std::int64_t values = values_of_block;
  by_blocks(
      numbers, [=](auto lanes, std::int64_t block) __attribute__((always_inline)) {
        using words = typename vectors<lanes>::words;
        const std::uint8_t* const codes = from + block * static_cast<std::int64_t>(bytes_of_block);
        float scale = 0;
        std::memcpy(&scale, codes + values, sizeof scale);
        alignas(64) float filled[values];
        const std::int64_t here = numbers - block * values;
        float* const x = here < values ? filled : to + block * values;
        for (std::int64_t i = 0; i < values; i += lanes) {
          typename vectors<lanes>::bytes narrow;
          typename vectors<lanes>::floats magnitude;
          load(codes + i, narrow);
          const words code = __builtin_convertvector(narrow, words), plain = code & 0x7fU;
          widen_e4m3(plain, magnitude);
          magnitude *= scale;
          words bits;
          std::memcpy(&bits, &magnitude, sizeof bits);
          bits |= (code & 0x80U) << 24;
          store(bits, x + i);
        }
        if (x == filled) std::copy_n(filled, here, to + block * values);
      });
}

}  // namespace comp::libtorch::detail
