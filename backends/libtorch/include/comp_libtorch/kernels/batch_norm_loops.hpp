// SPDX-License-Identifier: Apache-2.0
// The passes of batch norm (batch_norm.hpp) over channels-last images in BF16.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <comp_libtorch/kernels/vectors.hpp>
#include <comp_libtorch/support/parallel.hpp>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace comp::libtorch::detail {

/// Images as a matrix with a row for each pixel, of which each thread has a part.
struct pixel_rows {
  std::int64_t rows, channels;
  std::int64_t parts = at::get_num_threads();

  explicit pixel_rows(const at::Tensor& images) : rows{images.numel() / images.size(1)}, channels{images.size(1)} {}

  /// Calls f(part, first element, rows, lanes) for tiles of rows, in vectors as wide as the CPU's. `back`: each part
  /// begins at its end, which the pass before has left in the cache.
  void for_each_tile(bool back, const auto& f) const {
    const std::int64_t tile = std::max<std::int64_t>(1, 8192 / channels), of_part = (rows + parts - 1) / parts;
    in_parallel(parts, 1, [&](std::int64_t from, std::int64_t to) {
      run_widest([&](auto lanes) __attribute__((always_inline)) {
        for (std::int64_t part = from; part < to; ++part) {
          const std::int64_t first = std::min(rows, part * of_part), end = std::min(rows, first + of_part);
          const std::int64_t tiles = (end - first + tile - 1) / tile;
          for (std::int64_t i = 0; i < tiles; ++i) {
            const std::int64_t row = first + (back ? tiles - 1 - i : i) * tile;
            f(part, row * channels, std::min(tile, end - row), lanes);
          }
        }
      });
    });
  }
};

/// Returns: the mean of each channel in some pixels.
inline std::vector<float> estimated_means(const pixel_rows& pixels, const std::uint16_t* x) {
  const std::int64_t count = std::min<std::int64_t>(64, pixels.rows), step = pixels.rows / count;
  std::vector<float> means(static_cast<std::size_t>(pixels.channels));
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = 0; c < pixels.channels; c += 4) {
      vectors<4>::floats mean, value;
      load(means.data() + c, mean);
      load_bf16<4>(x + i * step * pixels.channels + c, value);
      mean += value / static_cast<float>(count);
      store(mean, means.data() + c);
    }
  }
  return means;
}

/// Calls f(channel, blocks) for all channels, `blocks` vectors at a time. Requires: a multiple of 16 channels.
template <int lanes, class F>
COMP_LIBTORCH_INLINE void for_each_block(std::int64_t channels, const F& f) {
  std::int64_t c = 0;
  for (; c + 4 * lanes <= channels; c += 4 * lanes) f(c, std::integral_constant<int, 4>{});
  for (; c < channels; c += lanes) f(c, std::integral_constant<int, 1>{});
}

/// Adds up a tile by channels, in `sums`: with d = x - center those of d and of d * d; with gradients g those of g and
/// of g * d.
template <int lanes, bool with_gradient>
COMP_LIBTORCH_INLINE void add_tile(const std::uint16_t* x, const std::uint16_t* g, std::int64_t rows,
                                   std::int64_t channels, const float* center, double* sums) {
  using floats = typename vectors<lanes>::floats;
  for_each_block<lanes>(
      channels, [&](std::int64_t c, auto blocks) __attribute__((always_inline)) {
        floats at[blocks()], first[blocks()], second[blocks()];
        unrolled<blocks()>([&](auto b) __attribute__((always_inline)) {
          load(center + c + lanes * b, at[b]);
          first[b] = second[b] = floats{};
        });
        for (std::int64_t i = c; i < rows * channels; i += channels) {
          unrolled<blocks()>([&](auto b) __attribute__((always_inline)) {
            floats d, factor;
            load_bf16<lanes>(x + i + lanes * b, d);
            d -= at[b];
            if constexpr (with_gradient) {
              load_bf16<lanes>(g + i + lanes * b, factor);
            } else {
              factor = d;
            }
            first[b] += factor;
            second[b] += factor * d;
          });
        }
        unrolled<blocks()>([&](auto b) __attribute__((always_inline)) {
          for (int lane = 0; lane < lanes; ++lane) {
            sums[c + lanes * b + lane] += first[b][lane];
            sums[channels + c + lanes * b + lane] += second[b][lane];
          }
        });
      });
}

/// Writes x * slopes + offsets; with gradients g to that g * g_slopes.
template <int lanes, bool with_gradient>
COMP_LIBTORCH_INLINE void scale_tile(const std::uint16_t* x, const std::uint16_t* g, std::int64_t rows,
                                     std::int64_t channels, const float* slopes, const float* offsets,
                                     const float* g_slopes, std::uint16_t* to) {
  using floats = typename vectors<lanes>::floats;
  for_each_block<lanes>(
      channels, [&](std::int64_t c, auto blocks) __attribute__((always_inline)) {
        floats slope[blocks()], offset[blocks()], g_slope[blocks()];
        unrolled<blocks()>([&](auto b) __attribute__((always_inline)) {
          load(slopes + c + lanes * b, slope[b]);
          load(offsets + c + lanes * b, offset[b]);
          if constexpr (with_gradient) load(g_slopes + c + lanes * b, g_slope[b]);
        });
        for (std::int64_t i = c; i < rows * channels; i += channels) {
          unrolled<blocks()>([&](auto b) __attribute__((always_inline)) {
            floats value, gradient;
            load_bf16<lanes>(x + i + lanes * b, value);
            value = value * slope[b] + offset[b];
            if constexpr (with_gradient) {
              load_bf16<lanes>(g + i + lanes * b, gradient);
              value += gradient * g_slope[b];
            }
            typename vectors<lanes>::halves rounded;
            round_to_bf16<lanes>(value, rounded);
            store(rounded, to + i + lanes * b);
          });
        }
      });
}

}  // namespace comp::libtorch::detail
