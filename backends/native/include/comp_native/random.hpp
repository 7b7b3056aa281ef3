// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same with every standard library. The standard fixes the words of std::mt19937_64 but not
// its distributions, so the mappings from words to numbers are here.
#pragma once

#include <comp/core/random_rounding.hpp>
#include <comp_native/math/normal.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace comp::native {

/// Returns the seed of one of several streams of a run.
constexpr std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t stream) { return mix_key(seed, stream); }

class random_stream {
 public:
  random_stream(std::uint64_t seed, std::uint64_t stream) : words_{mix_seed(seed, stream)} {}

  /// Draws from [0, 1), with 53 bits.
  double uniform() { return static_cast<double>(words_() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Draws from N(0,1) by Box and Muller's method, which gives two numbers at a time; both are used.
  double normal() {
    if (std::exchange(has_second_, false)) return second_;
    double u = 0, v = 0;
    normal_parts({&u, 1}, {&v, 1});
    const auto [first, second] = math::normal_pair(u, v);
    second_ = second;
    has_second_ = true;
    return first;
  }
  /// Draws the uniform numbers of as many pairs of normal() as u has elements: pair i is math::normal_pair(u[i], v[i]).
  /// Requires: normal() was not called before.
  void normal_parts(std::span<double> u, std::span<double> v) {
    for (std::size_t i = 0; i < u.size(); ++i) {
      u[i] = 1 - uniform();
      v[i] = uniform();
    }
  }
  /// Draws uniformly from [0, bound), without the bias that a remainder alone would have.
  std::uint64_t below(std::uint64_t bound) {
    constexpr auto most = std::numeric_limits<std::uint64_t>::max();
    const std::uint64_t limit = most / bound * bound;
    for (;;) {
      if (const std::uint64_t drawn = words_(); drawn < limit) return drawn % bound;
    }
  }

 private:
  std::mt19937_64 words_;
  double second_ = 0;
  bool has_second_ = false;
};

/// Returns the numbers 0 .. size-1 in an order that seed and stream fix (Fisher and Yates).
inline std::vector<std::uint32_t> permutation(std::uint32_t size, std::uint64_t seed, std::uint64_t stream) {
  std::vector<std::uint32_t> order(size);
  for (std::uint32_t i = 0; i < size; ++i) order[i] = i;
  random_stream draws{seed, stream};
  for (std::uint32_t i = size; i > 1; --i) std::swap(order[i - 1], order[draws.below(i)]);
  return order;
}

}  // namespace comp::native
