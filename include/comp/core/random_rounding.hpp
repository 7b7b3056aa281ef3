// SPDX-License-Identifier: Apache-2.0
// Rounding at random (stochastic rounding) to BF16, and to FP8 E4M3 in blocks that share a scale: up or down, with
// chances that keep the mean. A value that each step changes by less than half a unit of the format, such as an
// optimizer's moment, stands still if it is rounded to nearest, and goes on if it is rounded at random.
// The random bits are a function of a key and the element's number, so that a training is reproducible, and ranks that
// have the same key round alike.
// Source: Gupta, Agrawal, Gopalakrishnan and Narayanan 2015 (stochastic rounding); Wellons 2018 (the hash "lowbias32");
// torchao 0.18, optim/subclass_fp8.py (the blocks: 256 values, whose scale is their largest magnitude, 1e-12 at least,
// over 448; it rounds to nearest).
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

/// Returns: the random word of element `i`; elements whose numbers differ by 2^32 share one.
COMP_ROUNDING_INLINE std::uint32_t random_word(std::uint64_t key, std::uint32_t i) {
  std::uint32_t x = i + static_cast<std::uint32_t>(key);
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

/// Values of a moment in FP8 that share a scale, and the bytes that they take: their codes, and the scale in FP32.
inline constexpr std::size_t values_of_block = 256, bytes_of_block = values_of_block + sizeof(float);
/// Returns: the blocks of so many values; the last one is filled up with zeros.
constexpr std::size_t blocks_of(std::size_t values) { return (values + values_of_block - 1) / values_of_block; }
/// Moments of fewer values stay in FP32: their blocks would save little. Source: torchao, optim/adam.py.
inline constexpr std::size_t fewest_values_in_blocks = 4096;

/// Returns: a block's scale. `largest`: the bits of its largest magnitude. If that is infinite, as the square of a
/// large gradient is, the scale is that of 2^127; if it is NaN, so are all values of the block.
COMP_ROUNDING_INLINE float scale_of_block(std::uint32_t largest) {
  const auto magnitude = __builtin_bit_cast(float, largest);
  return (magnitude < 1e-12F ? 1e-12F : magnitude > 0x1p127F ? 0x1p127F : magnitude) / 448.0F;
}
/// Gives the codes in E4M3, without sign, of magnitudes divided by their block's scale: of numbers, or of vectors of
/// them. `random`: 16 random bits each. `least`: the code that a magnitude above 0 has at least: 1 for a second moment,
/// since Adam divides by its root. Subnormals have the spacing of the smallest normal values, to which they are moved
/// up.
template <class Floats, class Words>
COMP_ROUNDING_INLINE void round_to_e4m3(const Floats& magnitude, const Words& random, std::uint32_t least,
                                        Words& code) {
  const Floats most = Floats{} + 448.0F, bounded = magnitude < most ? magnitude : most, up = bounded + 0x1p-6F;
  const Words bits = __builtin_bit_cast(Words, bounded), moved = __builtin_bit_cast(Words, up) - (1U << 23);
  const Words rounded = (((bounded < 0x1p-6F ? moved : bits) + ((random << 4) | 8U)) >> 20) - (120U << 3);
  const Words none = Words{}, lowest = none + least;
  code = rounded > none ? rounded : (magnitude > 0.0F ? lowest : none);
}
/// Gives what codes in E4M3 without sign stand for.
template <class Words, class Floats>
COMP_ROUNDING_INLINE void widen_e4m3(const Words& code, Floats& magnitude) {
  const Words bits = (code << 20) + (120U << 23), moved = bits + (1U << 23);
  const Floats normal = __builtin_bit_cast(Floats, bits), subnormal = __builtin_bit_cast(Floats, moved) - 0x1p-6F;
  magnitude = code < 8U ? subnormal : normal;
}

}  // namespace comp
