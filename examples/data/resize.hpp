// SPDX-License-Identifier: Apache-2.0
// Brings pictures to one size: scales them until the shorter side fits, then cuts out the middle. Scaling down averages
// all old pixels that a new one covers (bilinear with antialiasing, as in Pillow), so that fine patterns do not alias.
#pragma once

#include <algorithm>
#include <cmath>
#include <examples/data/jpeg.hpp>

namespace data_sets {

using comp::error;

namespace detail {

/// The old pixels of an axis that one new pixel is the weighted mean of.
struct blend {
  std::int64_t first = 0;
  std::vector<float> weights = {};
};

inline std::vector<blend> blends(std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), reach = std::max(scale, 1.0);
  std::vector<blend> pixels(static_cast<std::size_t>(to));
  for (std::int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(std::llround(centre - reach), 0);
    const auto last = std::min<std::int64_t>(std::max<std::int64_t>(std::llround(centre + reach), first + 1), from);
    blend& one = pixels[static_cast<std::size_t>(i)];
    one.first = std::min(first, from - 1);
    double sum = 0;
    for (std::int64_t at = one.first; at < last; ++at) {
      const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(at) + 0.5 - centre) / reach);
      one.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    for (float& weight : one.weights) weight = static_cast<float>(weight / sum);
  }
  return pixels;
}

/// Scales one axis: (outer, from, inner) to (outer, to, inner).
inline std::vector<float> scaled(const std::vector<float>& values, std::int64_t from, std::int64_t to,
                                 std::int64_t inner) {
  const std::vector<blend> made_of = blends(from, to);
  const auto outer = std::ssize(values) / (from * inner);
  std::vector<float> pixels(static_cast<std::size_t>(outer * to * inner));
  float* out = pixels.data();
  for (std::int64_t o = 0; o < outer; ++o) {
    for (const blend& one : made_of) {
      const float* in = values.data() + (o * from + one.first) * inner;
      for (const float weight : one.weights) {
        for (std::int64_t i = 0; i < inner; ++i) out[i] += weight * in[i];
        in += inner;
      }
      out += inner;
    }
  }
  return pixels;
}

}  // namespace detail

/// Throws: `settings_error` for a size that is not positive, `error` for an empty picture.
inline picture resized(const picture& from, std::int64_t height, std::int64_t width) {
  require<settings_error>(height > 0 && width > 0,
                          "a picture of {} x {} asked for (both must be positive): change them", width, height);
  require<error>(from.height > 0 && from.width > 0, "a picture without pixels (nothing can be scaled): leave it out");
  if (from.height == height && from.width == width) return from;
  std::vector<float> values{from.pixels.begin(), from.pixels.end()};
  values = detail::scaled(values, from.width, width, 3);
  values = detail::scaled(values, from.height, height, width * 3);
  picture image{height, width, {}};
  image.pixels.reserve(values.size());
  for (const float value : values)
    image.pixels.push_back(static_cast<std::uint8_t>(std::clamp(value + 0.5F, 0.0F, 255.0F)));
  return image;
}

/// Returns: the middle of the picture as networks read it, (3, side, side). scale_to: what the shorter side is scaled
/// to before the middle is cut out, as ImageNet's usual 256 for 224; 0: the side itself.
inline std::vector<std::uint8_t> middle(const picture& from, std::int64_t side, std::int64_t scale_to = 0) {
  const std::int64_t shorter = std::min(from.height, from.width), wanted = std::max(side, scale_to);
  require<error>(shorter > 0, "a picture without pixels (nothing can be cut out): leave it out");
  const picture all =
      resized(from, std::max(wanted, from.height * wanted / shorter), std::max(wanted, from.width * wanted / shorter));
  const std::int64_t top = (all.height - side) / 2, left = (all.width - side) / 2;
  std::vector<std::uint8_t> pixels;
  pixels.reserve(static_cast<std::size_t>(3 * side * side));
  for (std::int64_t c = 0; c < 3; ++c) {
    for (std::int64_t y = top; y < top + side; ++y) {
      for (std::int64_t x = left; x < left + side; ++x) {
        pixels.push_back(all.pixels[static_cast<std::size_t>((y * all.width + x) * 3 + c)]);
      }
    }
  }
  return pixels;
}

}  // namespace data_sets
