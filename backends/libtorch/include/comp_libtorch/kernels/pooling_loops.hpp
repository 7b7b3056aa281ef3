// SPDX-License-Identifier: Apache-2.0
// The loops of max pooling (pooling.hpp) over channels-last images in BF16.
#pragma once

#include <algorithm>
#include <array>
#include <comp_libtorch/kernels/vectors.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace comp::libtorch::detail {

/// How windows go along one axis of an image.
struct window_steps {
  std::int64_t pixels = 1;  // of the image
  std::int64_t size = 1, stride = 1, padding = 0;

  std::int64_t windows() const { return (pixels + 2 * padding - size) / stride + 1; }
  std::int64_t first_windows(std::int64_t pixel) const {
    return pixel + padding < size ? 0 : (pixel + padding - size) / stride + 1;
  }
  std::int64_t end_windows(std::int64_t pixel) const { return std::min(windows(), (pixel + padding) / stride + 1); }
};

struct window_grid {
  std::int64_t channels = 1;
  window_steps y, x;

  static constexpr std::int64_t most_pixels = 255;  // of a window, as a place is a byte
};

/// Running maxima of 16 channels, and their places in the window. Keys are integers in the order of the numbers.
class running_maximum {
 public:
  COMP_LIBTORCH_INLINE void take(const std::uint16_t* from, std::int64_t place) {
    halves value;
    load(from, value);
    shorts bits;
    std::memcpy(&bits, &value, sizeof bits);
    const shorts magnitude = bits & 0x7fff, sign = bits >> 15;
    const shorts key = magnitude > infinity ? shorts{} + nan : (magnitude ^ sign) - sign;
    const shorts larger = (key > key_) | (key == nan);
    key_ = larger ? key : key_;
    value_ = larger ? value : value_;
    place_ = larger ? shorts{} + static_cast<std::int16_t>(place) : place_;
  }
  COMP_LIBTORCH_INLINE void write(std::uint16_t* value, std::uint8_t* place) const {
    store(value_, value);
    store(__builtin_convertvector(place_, vectors<16>::bytes), place);
  }

 private:
  using halves = vectors<16>::halves;
  using shorts = vectors<16>::shorts;
  static constexpr std::int16_t infinity = 0x7f80, nan = 0x7fff;
  shorts key_ = shorts{} - nan, place_ = {};
  halves value_ = {};
};

/// Pools `line`, a row of windows, of images `from`.
COMP_LIBTORCH_INLINE void pool_line(const window_grid& grid, std::int64_t line, const std::uint16_t* from,
                                    std::uint16_t* to, std::uint8_t* places) {
  const window_steps y = grid.y, x = grid.x;
  const std::int64_t channels = grid.channels, image = line / y.windows();
  const std::int64_t top = line % y.windows() * y.stride - y.padding;
  const std::int64_t first_row = std::max<std::int64_t>(0, -top), end_row = std::min(y.size, y.pixels - top);
  for (std::int64_t window = 0; window < x.windows(); ++window) {
    const std::int64_t left = window * x.stride - x.padding;
    const std::int64_t first = std::max<std::int64_t>(0, -left), end = std::min(x.size, x.pixels - left);
    const std::int64_t result = (line * x.windows() + window) * channels;
    for (std::int64_t c = 0; c < channels; c += 16) {
      running_maximum largest;
      for (std::int64_t row = first_row; row < end_row; ++row) {
        const std::int64_t begin = ((image * y.pixels + top + row) * x.pixels + left) * channels + c;
        for (std::int64_t column = first; column < end; ++column)
          largest.take(from + begin + column * channels, row * x.size + column);
      }
      largest.write(to + result + c, places + result + c);
    }
  }
}

/// A window over a pixel.
struct window_over {
  std::int64_t at;      // of its first channel
  std::uint16_t place;  // of the pixel in it
};

/// Writes the gradient of a pixel's channels: the sum of those of the `count` windows that chose it.
template <int lanes>
COMP_LIBTORCH_INLINE void gather_pixel(const window_over* windows, std::size_t count, const std::uint16_t* gradient,
                                       const std::uint8_t* places, std::int64_t channels, std::uint16_t* to) {
  using halves = typename vectors<lanes>::halves;
  using floats = typename vectors<lanes>::floats;
  using words = typename vectors<lanes>::words;
  const auto chosen = [&](std::size_t i, std::int64_t c, halves & value) __attribute__((always_inline)) {
    typename vectors<lanes>::bytes place;
    load(places + windows[i].at + c, place);
    load(gradient + windows[i].at + c, value);
    value &= __builtin_convertvector(place, halves) == windows[i].place;
  };
  for (std::int64_t c = 0; c < channels; c += lanes) {
    halves sum{};
    if (count > 0) chosen(0, c, sum);
    if (count > 1) {
      floats total;
      widen<lanes>(sum, total);
      for (std::size_t i = 1; i < count; ++i) {
        halves next;
        floats term;
        chosen(i, c, next);
        widen<lanes>(next, term);
        term += total;
        words bits;  // round_to_bf16 without its case for NaN, whose low 16 bits are 0 here
        std::memcpy(&bits, &term, sizeof bits);
        bits = (bits + (((bits >> 16) & 1U) + 0x7fffU)) & 0xffff0000U;
        std::memcpy(&total, &bits, sizeof bits);
      }
      words bits;
      std::memcpy(&bits, &total, sizeof bits);
      sum = __builtin_convertvector(bits >> 16, halves);
    }
    sum &= sum != 0x8000;  // ATen adds to zeros, and 0 + -0 is 0
    store(sum, to + c);
  }
}

/// Writes the gradient of `line`, a row of pixels.
template <int lanes>
COMP_LIBTORCH_INLINE void gather_line(const window_grid& grid, std::int64_t line, const std::uint16_t* gradient,
                                      const std::uint8_t* places, std::uint16_t* to) {
  const window_steps y = grid.y, x = grid.x;
  const std::int64_t image = line / y.pixels, row = line % y.pixels;
  std::array<window_over, window_grid::most_pixels> windows;
  for (std::int64_t column = 0; column < x.pixels; ++column) {
    std::size_t count = 0;
    for (std::int64_t i = y.first_windows(row); i < y.end_windows(row); ++i) {
      for (std::int64_t j = x.first_windows(column); j < x.end_windows(column); ++j) {
        const std::int64_t place = (row + y.padding - i * y.stride) * x.size + column + x.padding - j * x.stride;
        windows[count++] = {((image * y.windows() + i) * x.windows() + j) * grid.channels,
                            static_cast<std::uint16_t>(place)};
      }
    }
    gather_pixel<lanes>(windows.data(), count, gradient, places, grid.channels,
                        to + (line * x.pixels + column) * grid.channels);
  }
}

}  // namespace comp::libtorch::detail
