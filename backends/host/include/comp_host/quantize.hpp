// SPDX-License-Identifier: Apache-2.0
// Rounds an operand of a product as a format below 16 bits does, with its scales, and gives the values that the product
// reads, in FP32. A product of two such operands in FP32 is then that of the format, on any CPU.
// A matrix is cut into bands of as many rows as a block has, and strips of columns whose scales stay in the cache.
// Magnitudes are compared as integers, for which NaN is the largest. A block at an edge has the values that are there.
// Of values along the contraction, what is left of 16 is not transformed.
#pragma once

#include <algorithm>
#include <comp/core/scaled_formats.hpp>
#include <comp_native/device.hpp>
#include <comp_native/math/scaled.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "context.hpp"

namespace comp::host {

/// The index of a matrix that a product sums over. y = x w' sums over the columns of both.
enum class contraction : std::uint8_t { over_columns, over_rows };

namespace detail {

namespace math = native::math;
inline constexpr std::size_t strip_width = 512, noise_span = 256;

COMP_HOST_INLINE std::int32_t magnitude_bits(float x) { return math::bits_as<std::int32_t>(x) & 0x7fffffff; }
COMP_HOST_INLINE std::int32_t larger(std::int32_t a, std::int32_t b) { return a > b ? a : b; }

/// Returns: the largest magnitude of n values; NaN if one is NaN.
inline float largest_magnitude(const float* values, std::size_t n) {
  constexpr std::size_t piece = 16384;
  std::vector<std::int32_t> partial((n + piece - 1) / piece);
  std::int32_t* const parts = partial.data();
  launch(
      partial.size(),
      [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        for (std::size_t i = begin; i < end; ++i) {
          const float* x = values + i * piece;
          const std::size_t some = n - i * piece < piece ? n - i * piece : piece;
          std::int32_t most = 0;
#pragma omp simd reduction(max : most)
          for (std::size_t j = 0; j < some; ++j) most = larger(most, magnitude_bits(x[j]));
          parts[i] = most;
        }
      },
      2, 1);
  return math::bits_as<float>(std::ranges::max(partial));
}

/// A matrix, the blocks that it is cut into, and what holds for all of them.
struct quantized_matrix {
  operand_format format;
  const float* from;
  float* to;
  std::size_t rows, columns, block_rows, block_columns;
  math::scale_pair of_matrix;
  math::nvfp4_scales two_levels;
  native::dropout_key key;

  std::size_t bands() const { return (rows + block_rows - 1) / block_rows; }
  std::size_t strips() const { return (columns + strip_width - 1) / strip_width; }
};

/// Sets the scales of n blocks of these largest magnitudes.
COMP_HOST_INLINE void find_scales(const quantized_matrix& m, const std::int32_t* largest, std::size_t n, float* encode,
                                  float* decode) {
  const auto set = [&](const auto& scales_of) COMP_HOST_KERNEL {
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) {
      const math::scale_pair s = scales_of(math::bits_as<float>(largest[i]));
      encode[i] = s.encode;
      decode[i] = s.decode;
    }
  };
  const float top = m.format.element.largest, reciprocal = 1 / top;
  const math::scale_pair of_matrix = m.of_matrix;
  const math::nvfp4_scales two_levels = m.two_levels;
  const bool powers = m.format.scales == scale_rounding::up;
  switch (m.format.scale) {
    case scale_kind::tensor_fp32:
      return set([=](float) COMP_HOST_KERNEL { return of_matrix; });
    case scale_kind::block_fp32:
      return set([=](float amax) COMP_HOST_KERNEL { return math::fp32_scales(amax, top, powers, math::detail::most); });
    case scale_kind::block_e8m0:
      return set([=](float amax) COMP_HOST_KERNEL { return math::e8m0_scales(amax, reciprocal); });
    case scale_kind::block_e4m3:
      return set([=](float amax) COMP_HOST_KERNEL { return two_levels.of_block(amax); });
  }
}

/// Sets largest[j] to the largest magnitude of column j, and to 0 for columns up to `padded` that are not there.
COMP_HOST_INLINE void column_magnitudes(const float* x, std::size_t stride, std::size_t rows, std::size_t columns,
                                        std::int32_t* largest, std::size_t padded) {
  std::fill(largest, largest + padded, 0);
  for (std::size_t i = 0; i < rows; ++i, x += stride) {
#pragma omp simd
    for (std::size_t j = 0; j < columns; ++j) largest[j] = larger(largest[j], magnitude_bits(x[j]));
  }
}
/// Replaces each `width` magnitudes by their largest. Requires: width is a multiple of 16.
COMP_HOST_INLINE void block_magnitudes(std::int32_t* largest, std::size_t width, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b) {
    std::int32_t most = 0;
    for (std::size_t j = b * width; j < (b + 1) * width; j += 16) {
#pragma omp simd reduction(max : most)
      for (std::size_t lane = 0; lane < 16; ++lane) most = larger(most, largest[j + lane]);
    }
    largest[b] = most;
  }
}
/// Sets all[j] to the scale of the block that column j is in. Requires: width is a multiple of 16.
COMP_HOST_INLINE void spread(const float* scales, std::size_t width, std::size_t blocks, float* all) {
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t j = b * width; j < (b + 1) * width; j += 16) {
#pragma omp simd
      for (std::size_t lane = 0; lane < 16; ++lane) all[j + lane] = scales[b];
    }
  }
}

/// Rounds the values of one band in one strip.
COMP_HOST_INLINE void quantize_band(const quantized_matrix& m, std::size_t band, std::size_t strip) {
  alignas(64) std::int32_t largest[strip_width];
  alignas(64) float of_blocks[2][strip_width], of_columns[2][strip_width];
  const std::size_t row = band * m.block_rows, column = strip * strip_width, width = m.block_columns;
  const std::size_t rows = std::min(m.block_rows, m.rows - row), columns = std::min(strip_width, m.columns - column);
  const std::size_t blocks = (columns + width - 1) / width;
  const float* x = m.from + row * m.columns + column;
  float* y = m.to + row * m.columns + column;
  if (m.format.scale != scale_kind::tensor_fp32)
    column_magnitudes(x, m.columns, rows, columns, largest, blocks * width);
  if (width > 1) block_magnitudes(largest, width, blocks);
  find_scales(m, largest, blocks, of_blocks[0], of_blocks[1]);
  if (width > 1) {
    spread(of_blocks[0], width, blocks, of_columns[0]);
    spread(of_blocks[1], width, blocks, of_columns[1]);
  }
  const float *encode = width > 1 ? of_columns[0] : of_blocks[0], *decode = width > 1 ? of_columns[1] : of_blocks[1];
  const math::element_rounder element{m.format};
  for (std::size_t i = 0; i < rows; ++i, x += m.columns, y += m.columns) {
    if (m.format.elements == element_rounding::nearest_even) {
#pragma omp simd
      for (std::size_t j = 0; j < columns; ++j) y[j] = element.nearest(x[j], {encode[j], decode[j]});
      continue;
    }
    for (std::size_t at = 0; at < columns; at += noise_span) {
      std::uint32_t noise[noise_span];
      math::rounding_noise(m.key, row + i, (column + at) / noise_span, noise);
      const std::size_t some = std::min(noise_span, columns - at);
#pragma omp simd
      for (std::size_t j = 0; j < some; ++j) {
        y[at + j] = element.stochastic(x[at + j], {encode[at + j], decode[at + j]}, noise[j]);
      }
    }
  }
}

/// Multiplies each 16 values along the contraction by the Hadamard matrix with signs, and rounds to BF16, as
/// TransformerEngine does.
inline void transform16(const float* from, std::size_t rows, std::size_t columns, contraction over, float* to) {
  constexpr std::size_t most_lanes = 64;
  const bool down = over == contraction::over_rows;
  const std::size_t bands = down ? rows / 16 : rows, lanes = down ? columns : columns / 16;
  const std::size_t next = down ? columns : 1, beside = down ? 1 : 16, band_size = down ? 16 * columns : columns;
  launch_rows(bands, band_size, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
    for (std::size_t band = begin; band < end; ++band) {
      const float* x = from + band * band_size;
      float* y = to + band * band_size;
      for (std::size_t at = 0; at < lanes; at += most_lanes) {
        alignas(64) float v[16][most_lanes] = {};
        const std::size_t some = std::min(most_lanes, lanes - at);
        for (std::size_t i = 0; i < 16; ++i) {
          const float factor = hadamard_negative >> i & 1U ? -0.25F : 0.25F;
#pragma omp simd
          for (std::size_t j = 0; j < some; ++j) v[i][j] = factor * x[i * next + (at + j) * beside];
        }
        math::hadamard16(v);
        for (std::size_t i = 0; i < 16; ++i) {
#pragma omp simd
          for (std::size_t j = 0; j < some; ++j) {
            math::bf16 rounded;
            math::store(rounded, v[i][j]);
            y[i * next + (at + j) * beside] = math::load(rounded);
          }
        }
      }
      if (!down) std::copy(x + lanes * 16, x + columns, y + lanes * 16);
    }
  });
  if (down) std::copy(from + bands * band_size, from + rows * columns, to + bands * band_size);
}

/// Cuts a matrix into blocks, and finds the scales that hold for the whole matrix.
inline quantized_matrix in_blocks(const operand_format& f, const float* from, std::size_t rows, std::size_t columns,
                                  contraction over, const native::dropout_key& key, float* to) {
  const bool down = over == contraction::over_rows, whole = f.scale == scale_kind::tensor_fp32;
  const auto along = static_cast<std::size_t>(f.block.along), across = static_cast<std::size_t>(f.block.across);
  quantized_matrix m{f, from, to, rows, columns, down ? along : across, down ? across : along, {}, {}, key};
  if (whole) m.block_rows = 16, m.block_columns = 1;  // any will do
  if (whole || f.scale == scale_kind::block_e4m3) {
    const float amax = largest_magnitude(from, rows * columns);
    m.of_matrix = math::fp32_scales(amax, f.element.largest, false, 0x1p100F);
    m.two_levels = math::nvfp4_scales{amax};
  }
  return m;
}
COMP_HOST_INLINE void quantize_bands(const quantized_matrix& m, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) quantize_band(m, i / m.strips(), i % m.strips());
}

}  // namespace detail

/// Writes what a product reads of the matrix (rows, columns), row by row. The key is that of stochastic rounding; no
/// other operand may have the same.
/// Requires: `to` is other memory than `from`.
inline void quantize(context& c, const operand_format& f, const float* from, std::int64_t rows, std::int64_t columns,
                     contraction over, const native::dropout_key& key, float* to) {
  const auto height = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(columns);
  if (height * width == 0) return;
  c.run_kernel([&] {
    const bool transforms = f.before == transform::hadamard16;
    if (transforms) detail::transform16(from, height, width, over, to);
    const auto m = detail::in_blocks(f, transforms ? to : from, height, width, over, key, to);
    launch_rows(m.bands() * m.strips(), m.block_rows * std::min(width, detail::strip_width),
                [&m](std::size_t begin, std::size_t end) COMP_HOST_KERNEL { detail::quantize_bands(m, begin, end); });
  });
}

}  // namespace comp::host
