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
    std::array<std::int32_t, lanes> zeros{}, most{}, least{};  // signed: SSE2 compares no others
    std::array<std::uint32_t, lanes> bits{};
    std::array<float, lanes> sums{};
    least.fill(none);
    const float* x = values.data();
    const std::size_t whole = values.size() / lanes * lanes;
    const auto take = [&](std::size_t lane, float value) {
      const auto pattern = std::bit_cast<std::uint32_t>(value);
      const auto size = static_cast<std::int32_t>(pattern & 0x7fffffffU);
      const std::int32_t zero = size == 0 ? -1 : 0;
      const std::int32_t above_zero = size | (zero & none);
      zeros[lane] -= zero;
      most[lane] = most[lane] > size ? most[lane] : size;
      least[lane] = least[lane] < above_zero ? least[lane] : above_zero;
      bits[lane] += pattern;
      sums[lane] += std::bit_cast<float>(size);
    };
    for (std::size_t i = 0; i < whole; i += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) take(lane, x[i + lane]);
    }
    for (std::size_t i = whole; i < values.size(); ++i) take(0, x[i]);
    count_exponents(values);
    fold(values, zeros, most, least, bits, sums);
  }
  value_counts result() const {
    value_counts all = seen_;
    for (std::size_t i = 0; i < all.exponents.size(); ++i) {
      for (const auto& table : tables_) all.exponents[i] += table[i];
    }
    return all;
  }

 private:
  static constexpr std::int32_t none = 0x7fffffff, infinite = 0x7f800000;
  static constexpr std::int32_t huge = 0x7b000000;  // 2^119: a lane adds up 256 of them at most

  /// Four tables in turns: neighbours often have one exponent, and adding to the same place waits for itself.
  void count_exponents(std::span<const float> values) {
    const auto exponent = [&](std::size_t i) { return (std::bit_cast<std::uint32_t>(values[i]) >> 23) & 0xffU; };
    std::size_t i = 0;
    for (; i + 4 <= values.size(); i += 4) {
      for (std::size_t t = 0; t < 4; ++t) ++tables_[t][exponent(i + t)];
    }
    for (; i < values.size(); ++i) ++tables_[0][exponent(i)];
  }

  void fold(std::span<const float> values, const auto& zeros, const auto& most, const auto& least, const auto& bits,
            const auto& sums) {
    const std::int32_t largest = *std::ranges::max_element(most);
    const std::int32_t smallest = *std::ranges::min_element(least);
    seen_.values += values.size();
    for (const auto z : zeros) seen_.zeros += static_cast<std::uint64_t>(z);
    for (const auto b : bits) seen_.bits += b;
    if (largest >= huge) return fold_one_by_one(values);
    if (largest > 0) take_range(smallest, largest);
    for (const auto s : sums) seen_.sum += static_cast<double>(s);
    count_overflows(values, std::bit_cast<float>(largest));
  }
  void fold_one_by_one(std::span<const float> values) {
    for (const float x : values) {
      const auto size = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x) & 0x7fffffffU);
      seen_.nans += size > infinite;
      seen_.infinities += size == infinite;
      if (size >= infinite || size == 0) continue;
      take_range(size, size);
      seen_.sum += static_cast<double>(std::bit_cast<float>(size));
      count_overflows({&x, 1}, std::bit_cast<float>(size));
    }
  }
  void take_range(std::int32_t least, std::int32_t most) {
    const auto low = std::bit_cast<float>(least), high = std::bit_cast<float>(most);
    seen_.smallest = seen_.largest > 0 ? std::min(seen_.smallest, low) : low;
    seen_.largest = std::max(seen_.largest, high);
  }
  void count_overflows(std::span<const float> values, float largest) {
    for (const precision p : all_precisions) {
      const double from = overflows_from(p);
      if (p == precision::fp32 || static_cast<double>(largest) < from) continue;
      const auto limit = static_cast<float>(from);
      std::uint64_t count = 0;
      for (const float x : values)
        count += std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7fffffffU) >= limit;
      seen_.overflows[static_cast<std::size_t>(p)] += count;
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
