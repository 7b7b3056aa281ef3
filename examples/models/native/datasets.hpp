// SPDX-License-Identifier: Apache-2.0
// Two data sets in memory for the native trainer: images, each with a class, and a sequence of tokens, read in windows.
// Not here: reading files (examples/data).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_native/data_source.hpp>
#include <comp_native/random.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace native_models {

using namespace comp::native;

/// The random changes of an image, which are drawn again in each epoch.
struct image_augmentation {
  std::int64_t shift = 0;  // [pixels] at most, in each direction; pixels from outside of the image are 0
  bool flip = false;       // left and right are exchanged with a chance of one half
};

/// 8-bit images (N,C,H,W), each with a label. A pixel is read as (pixel / 255 - mean[c]) / deviation[c].
class image_data {
 public:
  /// Throws: `comp::error` if the sizes contradict each other, or a deviation is not positive.
  image_data(shape image, std::vector<std::uint8_t> pixels, std::vector<std::int32_t> labels,
             std::vector<float> mean = {}, std::vector<float> deviation = {})
      : image_{std::move(image)}, pixels_{std::move(pixels)}, labels_{std::move(labels)} {
    comp::require<comp::error>(image_.size() == 3 && elements(image_) > 0,
                               "images of shape {} (it must be (C,H,W), all positive): give the shape of one image",
                               text(image_));
    comp::require<comp::error>(pixels_.size() == labels_.size() * static_cast<std::size_t>(elements(image_)),
                               "{} pixels for {} images of {} (they must agree): check the reader", pixels_.size(),
                               labels_.size(), text(image_));
    const auto channels = static_cast<std::size_t>(image_[0]);
    mean.resize(channels, mean.empty() ? 0.0F : mean.back());
    deviation.resize(channels, deviation.empty() ? 1.0F : deviation.back());
    for (std::size_t c = 0; c < channels; ++c) {
      comp::require<comp::error>(deviation[c] > 0, "deviation {} of channel {} (it must be positive): change it",
                                 deviation[c], c);
      for (int pixel = 0; pixel < 256; ++pixel) {
        normal_.push_back((static_cast<float>(pixel) / 255.0F - mean[c]) / deviation[c]);
      }
    }
    signature_ = fmt::format("images {} x {} hash {:016x}", labels_.size(), text(image_),
                             hash_of<std::uint8_t>(pixels_) ^ hash_of<std::int32_t>(labels_));
    for (std::size_t c = 0; c < channels; ++c) signature_ += fmt::format(" ({} {})", mean[c], deviation[c]);
  }

  /// Throws: `error` for a negative shift.
  image_data augmented(image_augmentation by) const {
    comp::require<comp::error>(by.shift >= 0,
                               "images shifted by {} pixels at most (it must not be negative): change it", by.shift);
    image_data copy = *this;
    copy.random_ = by;
    copy.signature_ += fmt::format(" shifted {}{}", by.shift, by.flip ? " flipped" : "");
    return copy;
  }

  std::size_t size() const { return labels_.size(); }
  example_layout layout() const { return {.input_shape = image_, .of_bytes = normal_}; }
  void write(std::size_t i, const example_spans& to) const {
    const std::uint8_t* from = pixels_.data() + i * to.bytes.size();
    to.labels[0] = labels_[i];
    if (random_.shift == 0 && !random_.flip) {
      std::copy_n(from, to.bytes.size(), to.bytes.data());
    } else {
      write_augmented(from, to);
    }
  }
  std::string signature() const { return signature_; }

 private:
  void write_augmented(const std::uint8_t* from, const example_spans& to) const {
    const auto places = static_cast<std::uint64_t>(2 * random_.shift + 1);
    const auto moved = [&](std::uint64_t n) {
      return static_cast<std::int64_t>(mix_seed(to.draw, n) % places) - random_.shift;
    };
    const std::int64_t down = moved(0), right = moved(1), height = image_[1], width = image_[2];
    const bool flips = random_.flip && mix_seed(to.draw, 2) % 2 == 1;
    std::uint8_t* at = to.bytes.data();
    for (std::int64_t row = 0; row < image_[0] * height; ++row, at += width) {
      const std::int64_t y = row % height - down, first = std::clamp<std::int64_t>(right, 0, width);
      const std::int64_t last = y < 0 || y >= height ? first : std::clamp<std::int64_t>(width + right, first, width);
      std::fill(at, at + first, std::uint8_t{0});
      std::copy_n(from + (row - down) * width + first - right, last - first, at + first);
      std::fill(at + last, at + width, std::uint8_t{0});
      if (flips) std::reverse(at, at + width);
    }
  }

  shape image_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int32_t> labels_;
  std::vector<float> normal_;  // the value of each byte in each channel
  image_augmentation random_;
  std::string signature_;
};

/// Windows of `context` tokens that begin `stride` tokens apart. The label of a token is the next token.
class token_data {
 public:
  /// stride: 0 for windows that do not overlap. Throws: `comp::error` for a negative token, and for too few tokens for
  /// a window.
  token_data(std::vector<std::int32_t> tokens, std::int64_t context, std::int64_t stride = 0)
      : tokens_{std::move(tokens)}, context_{context}, stride_{stride == 0 ? context : stride} {
    comp::require<comp::error>(context_ > 0 && stride_ > 0,
                               "windows of {} tokens, {} apart (both must be positive): change them", context_,
                               stride_);
    comp::require<comp::error>(std::ssize(tokens_) > context_,
                               "{} tokens for windows of {} and the next (at least one window): "
                               "use more text or a shorter context",
                               tokens_.size(), context_);
    comp::require<comp::error>(std::ranges::min(tokens_) >= 0,
                               "token {} (tokens are not negative): check the vocabulary", std::ranges::min(tokens_));
    signature_ = fmt::format("tokens {} context {} stride {} hash {:016x}", tokens_.size(), context_, stride_,
                             hash_of<std::int32_t>(tokens_));
  }

  std::size_t size() const { return static_cast<std::size_t>((std::ssize(tokens_) - 1 - context_) / stride_ + 1); }
  example_layout layout() const {
    return {.input = input_kind::tokens, .input_shape = {context_}, .target_shape = {context_}};
  }
  void write(std::size_t i, const example_spans& to) const {
    const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(i) * stride_;
    std::copy_n(first, context_, to.tokens.begin());
    std::copy_n(first + 1, context_, to.labels.begin());
  }
  std::string signature() const { return signature_; }

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t context_;
  std::int64_t stride_;
  std::string signature_;
};

}  // namespace native_models
