// SPDX-License-Identifier: Apache-2.0
// 8-bit images, each with a class, which the readers of this folder return.
#pragma once

#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace data_sets {

using comp::error;
using comp::file_error;
using comp::require;

/// The parts of a data set that is published in two.
enum class part : std::uint8_t { train, test };

constexpr std::string_view name(part p) { return p == part::train ? "train" : "test"; }

/// pixels is (count, channels, height, width), labels is (count).
struct images {
  std::int64_t count = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels = {};
  std::vector<std::int32_t> labels = {};  // each in [0, classes)
  std::int32_t classes = 0;

  std::int64_t pixels_each() const { return channels * height * width; }

  /// Appends the images of `more`. Requires: they have the same sizes and classes, or there are no images yet.
  void append(const images& more) {
    if (count == 0) {
      *this = more;
      return;
    }
    require<file_error>(more.pixels_each() == pixels_each() && more.classes == classes,
                        "images of {} pixels in {} classes behind images of {} in {} (one data set has one size): "
                        "read them apart",
                        more.pixels_each(), more.classes, pixels_each(), classes);
    count += more.count;
    pixels.insert(pixels.end(), more.pixels.begin(), more.pixels.end());
    labels.insert(labels.end(), more.labels.begin(), more.labels.end());
  }
};

struct images_split {
  images train;
  images test;
};

/// Splits the images. held_out: the part of them, from the end, that is for testing.
/// Throws: `error` unless both parts have an image.
inline images_split split(images all, double held_out) {
  require<error>(held_out > 0 && held_out < 1,
                 "a share of {} held out for testing (it must lie between 0 and 1): change it", held_out);
  const auto tail = static_cast<std::int64_t>(static_cast<double>(all.count) * held_out);
  require<error>(tail > 0 && tail < all.count,
                 "{} images with a share of {} held out (each part needs an image): use more images or another share",
                 all.count, held_out);
  images test{.count = tail,
              .channels = all.channels,
              .height = all.height,
              .width = all.width,
              .pixels = {all.pixels.end() - tail * all.pixels_each(), all.pixels.end()},
              .labels = {all.labels.end() - tail, all.labels.end()},
              .classes = all.classes};
  all.count -= tail;
  all.pixels.resize(static_cast<std::size_t>(all.count * all.pixels_each()));
  all.labels.resize(static_cast<std::size_t>(all.count));
  return {std::move(all), std::move(test)};
}

}  // namespace data_sets
