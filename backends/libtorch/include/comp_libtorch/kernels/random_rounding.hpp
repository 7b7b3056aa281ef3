// SPDX-License-Identifier: Apache-2.0
// Rounds FP32 numbers to BF16 at random, by the words of core/random_rounding.hpp, in vectors as wide as the CPU's.
#pragma once

#include <comp/core/random_rounding.hpp>
#include <comp_libtorch/kernels/relu.hpp>
#include <comp_libtorch/kernels/vectors.hpp>
#include <cstdint>
#include <cstring>

namespace comp::libtorch::detail {

/// Rounds `numbers` numbers, of which the first is element `at`, by the bits of random_word(key, element) from `shift`
/// on.
inline void round_at_random(const float* from, std::uint16_t* to, std::int64_t numbers, std::int64_t at,
                            std::uint64_t key, unsigned shift) {
  const auto low = static_cast<std::uint32_t>(key) + static_cast<std::uint32_t>(at),
             high = static_cast<std::uint32_t>(key >> 32);
  by_vectors(
      numbers, [=](auto lanes, std::int64_t i) __attribute__((always_inline)) {
        typename vectors<lanes>::floats x;
        typename vectors<lanes>::words bits, random;
        load(from + i, x);
        std::memcpy(&bits, &x, sizeof bits);
        for (int lane = 0; lane < lanes; ++lane) random[lane] = low + static_cast<std::uint32_t>(i + lane);
        random = ((random ^ random >> 16) * 0x7feb352dU) ^ high;
        random = (random ^ random >> 15) * 0x846ca68bU;
        random ^= random >> 16;
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

}  // namespace comp::libtorch::detail
