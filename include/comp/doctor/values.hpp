// SPDX-License-Identifier: Apache-2.0
// Counts the values of a tensor in one pass: their range, how many are not finite, and how many have each exponent.
// From the exponents follows how many values each format would lose, without a second pass for each format. Values are
// counted in blocks that a compiler vectorises, and counts of parts of a tensor can be merged.
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

/// The smallest value that the format holds with all of its digits.
constexpr double smallest_normal(precision p) {
  double value = 2;
  for (int i = 0; i < (1 << (traits(p).exponent_bits - 1)) - 1; ++i) value /= 2;
  return value;
}

/// The smallest value above 0 that the format holds. Half of it and less is rounded to 0.
constexpr double smallest_subnormal(precision p) {
  double value = smallest_normal(p);
  for (int i = 0; i < traits(p).fraction_bits; ++i) value /= 2;
  return value;
}

/// The smallest value that the format rounds to infinity: half a unit in the last place above its largest finite value.
constexpr double overflows_from(precision p) {
  double unit = smallest_subnormal(p);
  for (double top = smallest_normal(p); top <= traits(p).largest / 2; top *= 2) unit *= 2;
  return traits(p).largest + unit / 2;
}

/// The counts of a tensor's values.
struct value_counts {
  static constexpr int lowest_exponent = -127;  // the exponent under which zeros and FP32's subnormal values count

  std::uint64_t values = 0;
  std::uint64_t zeros = 0, nans = 0, infinities = 0;
  float smallest = 0, largest = 0;                // magnitudes of finite values that are not 0; 0: there are none
  double sum = 0;                                 // sum of the finite magnitudes
  std::uint32_t bits = 0;                         // sum of all bit patterns, modulo 2^32; equal tensors have equal sums
  std::array<std::uint64_t, 255> exponents = {};  // [e - lowest_exponent]: how many finite values have exponent e
  std::array<std::uint64_t, all_precisions.size()> overflows = {};  // how many finite values each format makes infinite

  bool empty() const { return values == 0; }
  bool finite() const { return nans == 0 && infinities == 0; }
  /// Returns how many values are finite and not 0: the shares that a format loses are shares of these.
  std::uint64_t counted() const { return values - zeros - nans - infinities; }
  /// Returns the mean magnitude of the finite values.
  double mean() const { return counted() + zeros == 0 ? 0 : sum / static_cast<double>(counted() + zeros); }

  /// Returns how many finite values other than 0 have a magnitude below 2^exponent.
  std::uint64_t below(int exponent) const {
    std::uint64_t count = 0;
    for (int e = lowest_exponent; e < std::min(exponent, 128); ++e) {
      count += exponents[static_cast<std::size_t>(e - lowest_exponent)];
    }
    return exponent > lowest_exponent ? count - zeros : 0;
  }
  /// Returns how many values become 0 in the format. FP32's subnormal values have no exponents of their own in the
  /// counts; they count as lost in FP16 and FP8, and as kept in all other formats.
  std::uint64_t vanish(precision p) const { return below(std::ilogb(smallest_subnormal(p)) - 1); }
  /// Returns how many values lose digits or become 0, because they are below the format's smallest normal value.
  std::uint64_t subnormal(precision p) const { return below(std::ilogb(smallest_normal(p))); }
  std::uint64_t overflow(precision p) const { return overflows[static_cast<std::size_t>(p)]; }

  /// Adds the counts of another part of the tensor.
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

/// Files have the exponents and what overflows in a shorter form (examination_file.hpp).
void fields(auto& io, value_counts& v) {
  io("values", v.values);
  io("zeros", v.zeros);
  io("nans", v.nans);
  io("infinities", v.infinities);
  io("smallest", v.smallest, 0);
  io("largest", v.largest, 0);
  io("sum", v.sum);
  io("bits", v.bits, 0, std::numeric_limits<std::uint32_t>::max());
}

namespace detail {

/// Counts blocks of at most a few thousand values, which stay in the cache while they are passed over several times.
class counted_block {
 public:
  void add(std::span<const float> values) {
    constexpr std::size_t lanes = 16;
    std::array<float, lanes> most{}, least{}, sums{};
    std::array<std::uint32_t, lanes> bits{};
    least.fill(std::numeric_limits<float>::infinity());
    const float* x = values.data();
    const std::size_t whole = values.size() / lanes * lanes;
    // Comparisons are written so that NaN never becomes a maximum or a minimum, and that no branch hinders vectorising.
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
    // Exponent 0 is that of zeros and subnormal values, 255 that of infinities and NaN. Only a block that has some is
    // passed over again; most have none.
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
  static constexpr float huge = 0x1p119F;  // a lane sums up to 256 values, which stay finite in FP32 below this size

  std::uint32_t counted_in(std::size_t exponent) const {
    return tables_[0][exponent] + tables_[1][exponent] + tables_[2][exponent] + tables_[3][exponent];
  }
  void count_zeros(std::span<const float> values) {
    std::uint32_t zeros = 0;
    for (const float x : values) zeros += (std::bit_cast<std::uint32_t>(x) & magnitude) == 0;
    seen_.zeros += zeros;
  }
  /// Counts exponents in four tables by turns. Neighbouring values often have the same exponent, and an addition to the
  /// same place in memory would wait for the one before it.
  void count_exponents(std::span<const float> values) {
    const auto exponent = [&](std::size_t i) { return (std::bit_cast<std::uint32_t>(values[i]) >> 23) & 0xffU; };
    std::size_t i = 0;
    for (; i + 4 <= values.size(); i += 4) {
      for (std::size_t t = 0; t < 4; ++t) ++tables_[t][exponent(i + t)];
    }
    for (; i < values.size(); ++i) ++tables_[0][exponent(i)];
  }

  /// Counts a block with values that are not finite or are very large, which the sums of add() cannot take.
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
  /// Counts what each format cannot hold. The largest value of a block says for which formats there is anything to
  /// count, which is seldom for any.
  void count_overflows(std::span<const float> values, float largest) {
    static constexpr auto limits = [] {
      std::array<float, all_precisions.size()> of{};
      for (const precision p : all_precisions) {
        of[static_cast<std::size_t>(p)] =
            !is_low(p) ? std::numeric_limits<float>::infinity() : static_cast<float>(overflows_from(p));
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

/// Counts FP32 values in any order. It takes about as long as reading them twice from the cache.
inline value_counts counted(std::span<const float> values) {
  constexpr std::size_t block = 4096, at_once = block << 18;  // more values could overflow the tables' 32 bits
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
