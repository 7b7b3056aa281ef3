// SPDX-License-Identifier: Apache-2.0
// Counts what a block format does to the values of a matrix: how many are larger than the largest element times the
// block's scale (they clamp), and how many become 0 (they flush). Scales are made as core/scaled_formats.hpp says, with
// blocks along rows: a lower bound of what NVFP4's square blocks of a weight lose. NVFP4's Hadamard transform is left
// out, and stochastic rounding, which flushes a value as often as nearest rounding on average.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/precision.hpp>
#include <comp/core/scaled_formats.hpp>
#include <cstddef>
#include <cstdint>
#include <span>

namespace comp {

/// The block formats that a doctor counts.
inline constexpr std::array block_formats{precision::mxfp8, precision::nvfp4};

struct block_counts {
  std::uint64_t values = 0, clamped = 0, flushed = 0;  // finite values other than 0
  std::uint64_t blocks = 0, lost_blocks = 0;           // lost: more than half of a block's values flush

  void merge(const block_counts& more) {
    values += more.values;
    clamped += more.clamped;
    flushed += more.flushed;
    blocks += more.blocks;
    lost_blocks += more.lost_blocks;
  }
  bool operator==(const block_counts&) const = default;
};

namespace detail {

/// Returns a positive value rounded to the nearest of the format, at most its largest.
inline double rounded_to(double value, const element_format& f) {
  const int exponent = std::max(std::ilogb(value), f.smallest_exponent());
  const double unit = std::ldexp(1.0, exponent - f.fraction_bits);
  return std::min(std::nearbyint(value / unit) * unit, static_cast<double>(f.largest));
}

/// Returns the scale of a block with the given largest magnitude, in a matrix with the given one.
inline double block_scale(const operand_format& f, double largest, double of_matrix) {
  const double exact = largest / static_cast<double>(f.element.largest);
  if (f.scale == scale_kind::block_e8m0) return std::exp2(std::ceil(std::log2(exact)));
  const element_format e4m3 = element_of(precision::fp8_e4m3);
  const double factor = of_matrix / static_cast<double>(f.element.largest) / static_cast<double>(e4m3.largest);
  return rounded_to(exact / factor, e4m3) * factor;
}

}  // namespace detail

/// Counts a matrix of rows of `width` values in format `p`, one of `block_formats`. `largest`: the largest magnitude of
/// the matrix that the rows are part of.
inline block_counts counted_in_blocks(std::span<const float> values, std::size_t width, precision p, float largest) {
  const operand_format f = format_of(p, product::forward, operand::input);
  const auto along = static_cast<std::size_t>(f.block.along);
  const double smallest = std::ldexp(0.5, f.element.smallest_exponent() - f.element.fraction_bits);
  block_counts all;
  for (std::size_t row = 0; row < values.size(); row += width) {
    for (std::size_t at = 0; at < width; at += along) {
      const auto block = values.subspan(row + at, std::min({along, width - at, values.size() - row - at}));
      double most = 0;
      for (const float x : block) {
        if (std::isfinite(x)) most = std::max(most, std::abs(static_cast<double>(x)));
      }
      if (most == 0) continue;
      const double scale = detail::block_scale(f, most, static_cast<double>(largest));
      block_counts of{.blocks = 1};
      for (const float x : block) {
        if (!std::isfinite(x) || x == 0) continue;
        const double size = std::abs(static_cast<double>(x));
        ++of.values;
        of.clamped += size > scale * static_cast<double>(f.element.largest) && scale > 0;
        of.flushed += size <= scale * smallest || scale == 0;
      }
      of.lost_blocks = 2 * of.flushed > of.values;
      all.merge(of);
      if (row + at + along >= values.size()) break;
    }
  }
  return all;
}

}  // namespace comp
