// SPDX-License-Identifier: Apache-2.0
// The values of a tensor in one pass: their range, what is not finite, and how many have each exponent, from which
// follows what each format would lose of them. In blocks that a compiler vectorises; parts of a tensor are merged.
// Not here: where tensors come from (a backend's doctor).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <comp/core/precision.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace comp {

constexpr double smallest_normal(precision p) {
  double value = 2;
  for (int i = 0; i < (1 << (traits(p).exponent_bits - 1)) - 1; ++i) value /= 2;
  return value;
}

/// The smallest power of two that the format can hold: half of it and less become 0.
constexpr double smallest_subnormal(precision p) {
  double value = smallest_normal(p);
  for (int i = 0; i < traits(p).fraction_bits; ++i) value /= 2;
  return value;
}

/// From here on a value is rounded to more than the largest one: half a unit in the last place above it.
constexpr double overflows_from(precision p) {
  double unit = smallest_subnormal(p);
  const double next = 2 * smallest_normal(p);
  for (double top = next; top <= traits(p).largest; top *= 2) unit *= 2;
  return traits(p).largest + unit / 2;
}

struct value_counts {
  static constexpr int lowest_exponent = -127;  // that of zeros and of FP32's subnormal values

  std::uint64_t values = 0;
  std::uint64_t zeros = 0, nans = 0, infinities = 0;
  float smallest = 0, largest = 0;                // magnitudes of finite values that are not 0; 0: there are none
  double sum = 0;                                 // of finite magnitudes
  std::uint32_t bits = 0;                         // sum of all bit patterns, modulo 2^32: equal tensors have equal ones
  std::array<std::uint64_t, 255> exponents = {};  // [e - lowest_exponent]: finite values, zeros too
  std::array<std::uint64_t, all_precisions.size()> overflows = {};  // finite values that the format rounds to infinity

  bool finite() const { return nans == 0 && infinities == 0; }
  std::uint64_t counted() const { return values - zeros - nans - infinities; }

  /// Finite values other than 0 below 2^exponent.
  std::uint64_t below(int exponent) const {
    std::uint64_t count = 0;
    for (int e = lowest_exponent; e < std::min(exponent, 128); ++e) {
      count += exponents[static_cast<std::size_t>(e - lowest_exponent)];
    }
    return exponent > lowest_exponent ? count - zeros : 0;
  }
  /// How many become 0 in the format. What is subnormal in FP32 counts as nothing lost, but in FP16 and FP8.
  std::uint64_t vanish(precision p) const { return below(std::ilogb(smallest_subnormal(p)) - 1); }
  /// How many lose digits or become 0: those below the format's smallest normal value.
  std::uint64_t subnormal(precision p) const { return below(std::ilogb(smallest_normal(p))); }
  std::uint64_t overflow(precision p) const { return overflows[static_cast<std::size_t>(p)]; }

  void merge(const value_counts& more) {
    if (more.largest > 0) {
      smallest = largest > 0 ? std::min(smallest, more.smallest) : more.smallest;
      largest = std::max(largest, more.largest);
    }
    values += more.values;
    zeros += more.zeros;
    nans += more.nans;
    infinities += more.infinities;
    sum += more.sum;
    bits += more.bits;
    for (std::size_t i = 0; i < exponents.size(); ++i) exponents[i] += more.exponents[i];
    for (std::size_t i = 0; i < overflows.size(); ++i) overflows[i] += more.overflows[i];
  }
  bool operator==(const value_counts&) const = default;
};

namespace detail {

/// Adds up blocks of at most a few thousand values.
class counted_block {
 public:
  void add(std::span<const float> values) {
    constexpr std::size_t lanes = 16;
    std::array<float, lanes> most{}, least{}, sums{};
    std::array<std::uint32_t, lanes> bits{};
    least.fill(std::numeric_limits<float>::infinity());
    const float* x = values.data();
    const std::size_t whole = values.size() / lanes * lanes;
    const auto take = [&](std::size_t lane, float value) {
      const auto pattern = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t size = pattern & magnitude;
      const float x_size = std::bit_cast<float>(size);
      const float above_zero = std::bit_cast<float>(size | (size == 0 ? infinite : 0U));
      most[lane] = most[lane] < x_size ? x_size : most[lane];
      least[lane] = above_zero < least[lane] ? above_zero : least[lane];
      bits[lane] += pattern;
      sums[lane] += x_size;
    };
    for (std::size_t i = 0; i < whole; i += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) take(lane, x[i + lane]);
    }
    for (std::size_t i = whole; i < values.size(); ++i) take(0, x[i]);
    const std::uint32_t tiny = counted_in(0), not_finite = counted_in(255);
    count_exponents(values);
    if (counted_in(0) != tiny) count_zeros(values);
    seen_.values += values.size();
    for (const auto b : bits) seen_.bits += b;
    const float largest = *std::ranges::max_element(most);
    if (counted_in(255) != not_finite || largest >= huge) return add_one_by_one(values);
    if (largest > 0) take_range(*std::ranges::min_element(least), largest);
    for (const auto sum : sums) seen_.sum += static_cast<double>(sum);
    count_overflows(values, largest);
  }
  value_counts result() const {
    value_counts all = seen_;
    for (std::size_t i = 0; i < all.exponents.size(); ++i) {
      for (const auto& table : tables_) all.exponents[i] += table[i];
    }
    return all;
  }

 private:
  static constexpr std::uint32_t magnitude = 0x7fffffffU, infinite = 0x7f800000U;
  static constexpr float huge = 0x1p119F;  // a lane adds up 256 of them at most

  std::uint32_t counted_in(std::size_t exponent) const {
    return tables_[0][exponent] + tables_[1][exponent] + tables_[2][exponent] + tables_[3][exponent];
  }
  void count_zeros(std::span<const float> values) {
    std::uint32_t zeros = 0;
    for (const float x : values) zeros += (std::bit_cast<std::uint32_t>(x) & magnitude) == 0;
    seen_.zeros += zeros;
  }
  /// Four tables in turns: neighbours often have one exponent, and adding to the same place waits for itself.
  void count_exponents(std::span<const float> values) {
    const auto exponent = [&](std::size_t i) { return (std::bit_cast<std::uint32_t>(values[i]) >> 23) & 0xffU; };
    std::size_t i = 0;
    for (; i + 4 <= values.size(); i += 4) {
      for (std::size_t t = 0; t < 4; ++t) ++tables_[t][exponent(i + t)];
    }
    for (; i < values.size(); ++i) ++tables_[0][exponent(i)];
  }

  void add_one_by_one(std::span<const float> values) {
    for (const float x : values) {
      const std::uint32_t size = std::bit_cast<std::uint32_t>(x) & magnitude;
      seen_.nans += size > infinite;
      seen_.infinities += size == infinite;
      if (size >= infinite || size == 0) continue;
      const float x_size = std::bit_cast<float>(size);
      take_range(x_size, x_size);
      seen_.sum += static_cast<double>(x_size);
      count_overflows({&x, 1}, x_size);
    }
  }
  void take_range(float least, float most) {
    seen_.smallest = seen_.largest > 0 ? std::min(seen_.smallest, least) : least;
    seen_.largest = std::max(seen_.largest, most);
  }
  void count_overflows(std::span<const float> values, float largest) {
    static constexpr auto limits = [] {
      std::array<float, all_precisions.size()> of{};
      for (const precision p : all_precisions) {
        of[static_cast<std::size_t>(p)] =
            p == precision::fp32 ? std::numeric_limits<float>::infinity() : static_cast<float>(overflows_from(p));
      }
      return of;
    }();
    for (std::size_t p = 0; p < limits.size(); ++p) {
      if (largest < limits[p]) continue;
      std::uint32_t count = 0;
      for (const float x : values) count += std::abs(x) >= limits[p];
      seen_.overflows[p] += count;
    }
  }

  value_counts seen_;
  std::array<std::array<std::uint32_t, 256>, 4> tables_ = {};
};

}  // namespace detail

/// Of FP32 values in any order. Cost: about that of reading them twice from the cache.
inline value_counts counted(std::span<const float> values) {
  constexpr std::size_t block = 4096, at_once = block << 18;  // the tables count in 32 bits
  value_counts all;
  for (std::size_t from = 0; from < values.size(); from += at_once) {
    const auto part = values.subspan(from, std::min(at_once, values.size() - from));
    detail::counted_block counts;
    for (std::size_t i = 0; i < part.size(); i += block) counts.add(part.subspan(i, std::min(block, part.size() - i)));
    all.merge(counts.result());
  }
  return all;
}

}  // namespace comp
