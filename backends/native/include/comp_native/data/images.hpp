// SPDX-License-Identifier: Apache-2.0
// 8-bit images with a class each, as the readers of this folder give them.
#pragma once

#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace comp::native::data {

/// Which part of a data set that comes divided.
enum class part : std::uint8_t { train, test };

constexpr std::string_view name(part p) { return p == part::train ? "train" : "test"; }

/// Shapes: pixels is (count, channels, height, width), labels is (count).
struct images {
  std::int64_t count = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels = {};
  std::vector<std::int32_t> labels = {};  // each in [0, classes)
  std::int32_t classes = 0;

  std::int64_t pixels_each() const { return channels * height * width; }

  /// Adds the images of `more` behind these.
  /// Requires: equal sizes and classes, or no image here yet.
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

}  // namespace comp::native::data
