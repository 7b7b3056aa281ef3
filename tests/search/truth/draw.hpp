// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every standard library: a hash of a seed and a counter, so that a number can also
// be asked for by name (the noise of batch 17), in any order and any number of times.
// Not here: std's distributions, which differ from library to library.
// Source: splitmix64, Steele, Lea and Flood 2014; Box and Muller 1958.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

namespace truth {

constexpr std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { return mixed(mixed(a) ^ b); }

/// Uniform in (0, 1).
constexpr double uniform_of(std::uint64_t key) { return (static_cast<double>(mixed(key) >> 12) + 0.5) * 0x1p-52; }

/// Standard normal.
inline double normal_of(std::uint64_t key) {
  const double radius = std::sqrt(-2 * std::log(uniform_of(key)));
  return radius * std::cos(2 * std::numbers::pi * uniform_of(~key));
}

/// Lognormal of mean 1 whose standard deviation is `deviation`.
inline double factor_of(std::uint64_t key, double deviation) {
  if (deviation <= 0) return 1;
  const double variance = std::log1p(deviation * deviation);
  return std::exp(std::sqrt(variance) * normal_of(key) - variance / 2);
}

/// A stream of them.
class draw {
 public:
  explicit draw(std::uint64_t seed) : seed_{mixed(seed)} {}

  std::uint64_t bits() { return mixed(seed_, count_++); }
  double uniform() { return uniform_of(bits()); }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  double normal() { return normal_of(bits()); }
  double factor(double deviation) { return factor_of(bits(), deviation); }
  bool chance(double probability) { return uniform() < probability; }
  /// Uniform in [0, bound).
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(uniform() * static_cast<double>(bound)); }

  /// `count` of `from`, without repeats, in random order; all of them if there are no more.
  std::vector<std::size_t> some(std::vector<std::size_t> from, std::size_t count) {
    for (std::size_t i = 0; i < count && i + 1 < from.size(); ++i) std::swap(from[i], from[i + below(from.size() - i)]);
    if (count < from.size()) from.resize(count);
    return from;
  }

 private:
  std::uint64_t seed_, count_ = 0;
};

}  // namespace truth
