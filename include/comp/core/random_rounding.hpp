// SPDX-License-Identifier: Apache-2.0
// Rounding to BF16 at random (stochastic rounding): up or down, with chances that keep the mean. A value that each step
// changes by less than half a unit of BF16, such as an optimizer's moment, stands still if it is rounded to nearest,
// and goes on if it is rounded at random.
// The random bits are a function of a key and the element's number, so that a training is reproducible, and ranks that
// have the same key round alike.
// Source: Gupta, Agrawal, Gopalakrishnan and Narayanan 2015 (stochastic rounding); Wellons 2018 (the hash "lowbias32").
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__GNUC__) && !defined(__CUDACC__)
#define COMP_ROUNDING_INLINE __attribute__((always_inline)) constexpr  // for the vector unit of the loop that calls it
#else
#define COMP_ROUNDING_INLINE constexpr
#endif

namespace comp {

/// Returns: the key of one of several streams of a seed. Source: the finaliser of SplitMix64 (Steele, Lea and Flood
/// 2014).
constexpr std::uint64_t mix_key(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t z = seed + (stream + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/// Returns: the random word of element `i`. Elements whose numbers differ by 2^32 share one.
COMP_ROUNDING_INLINE std::uint32_t random_word(std::uint64_t key, std::size_t i) {
  std::uint32_t x = static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(key);
  x = (x ^ x >> 16) * 0x7feb352dU ^ static_cast<std::uint32_t>(key >> 32);
  x = (x ^ x >> 15) * 0x846ca68bU;
  return x ^ x >> 16;
}

/// Returns: the bits of `x` in BF16. `random`: 16 random bits. A value that BF16 holds stays as it is.
COMP_ROUNDING_INLINE std::uint16_t bf16_at_random(float x, std::uint32_t random) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t rounded = bits + (random & 0xffffU), quiet = bits | 0x400000U;
  return static_cast<std::uint16_t>(((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded) >> 16);
}

}  // namespace comp
