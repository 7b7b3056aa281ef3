// SPDX-License-Identifier: Apache-2.0
// Decodes a JPEG picture to red, green and blue bytes by libjpeg-turbo. Grey and CMYK pictures are converted.
// A file that ends early or is damaged is refused, because leaving pictures out would make two runs incomparable. Other
// warnings of libjpeg, as of bytes between markers, which some pictures of ImageNet have, are ignored, as other readers
// do.
#pragma once

// clang-format off
#include <cstdio>  // jpeglib.h needs it before
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <array>
#include <comp/core/error.hpp>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace data_sets {

using comp::file_error;
using comp::require;
using comp::settings_error;

/// pixels is (height, width, 3).
struct picture {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> pixels = {};
};

namespace detail {

/// libjpeg reports an error by a call that must not return, so that call jumps back to the start of decoding. A jump
/// runs no destructors; the functions that it leaves have no objects with one.
class jpeg_decoder {
 public:
  explicit jpeg_decoder(std::span<const std::byte> bytes) : bytes_{bytes} {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = [](j_common_ptr info) {
      auto* errors = reinterpret_cast<errors_of*>(info->err);
      info->err->format_message(info, errors->text.data());
      std::longjmp(errors->back, 1);
    };
    errors_.base.emit_message = [](j_common_ptr info, int level) {
      const int code = info->err->msg_code;
      if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) info->err->error_exit(info);
    };
    created_ = create();
  }
  ~jpeg_decoder() { jpeg_destroy_decompress(&info_); }
  jpeg_decoder(const jpeg_decoder&) = delete;
  jpeg_decoder& operator=(const jpeg_decoder&) = delete;

  bool header() {
    if (!created_ || setjmp(errors_.back) != 0) return false;
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
    jpeg_read_header(&info_, TRUE);
    const bool four = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = four ? JCS_CMYK : JCS_RGB;
    return true;
  }
  /// Requires: `to` has room for height x width x channels bytes.
  bool pixels(std::uint8_t* to) {
    if (setjmp(errors_.back) != 0) return false;
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = to + static_cast<std::size_t>(info_.output_scanline) * info_.image_width * channels();
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }
  std::size_t channels() const { return info_.out_color_space == JCS_CMYK ? 4 : 3; }
  std::int64_t height() const { return info_.image_height; }
  std::int64_t width() const { return info_.image_width; }
  bool inverted() const { return info_.saw_Adobe_marker != 0; }
  std::string_view error() const { return errors_.text.data(); }

 private:
  struct errors_of {
    jpeg_error_mgr base;  // first, since libjpeg has a pointer to this part alone
    std::jmp_buf back;
    std::array<char, JMSG_LENGTH_MAX> text = {};
  };

  bool create() {
    if (setjmp(errors_.back) != 0) return false;
    jpeg_create_decompress(&info_);
    return true;
  }

  std::span<const std::byte> bytes_;
  jpeg_decompress_struct info_ = {};
  errors_of errors_ = {};
  bool created_ = false;
};

/// Converts CMYK to RGB. Adobe's programs write the inks inverted.
inline std::vector<std::uint8_t> from_cmyk(const std::vector<std::uint8_t>& inks, bool inverted) {
  std::vector<std::uint8_t> colours;
  colours.reserve(inks.size() / 4 * 3);
  for (std::size_t at = 0; at + 3 < inks.size(); at += 4) {
    const int light = inverted ? inks[at + 3] : 255 - inks[at + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      const int ink = inverted ? inks[at + c] : 255 - inks[at + c];
      colours.push_back(static_cast<std::uint8_t>((ink * light + 127) / 255));
    }
  }
  return colours;
}

}  // namespace detail

/// Throws: `file_error` for anything but a JPEG, for a damaged or cut-off one, and for more than `most` pixels.
inline picture decode_jpeg(std::span<const std::byte> bytes, std::string_view name,
                           std::int64_t most = std::int64_t{1} << 27) {
  detail::jpeg_decoder decoder{bytes};
  const auto readable = [&](bool holds) {
    require<file_error>(holds,
                        "{} cannot be read as JPEG ({}): fetch it again, convert it, or take it out of the folder",
                        name, decoder.error());
  };
  readable(decoder.header());
  require<file_error>(decoder.height() * decoder.width() <= most,
                      "{} has {} x {} pixels ({} at most are read): check that it is the right file, or scale it down",
                      name, decoder.width(), decoder.height(), most);
  picture image{.height = decoder.height(), .width = decoder.width()};
  image.pixels.resize(static_cast<std::size_t>(image.height * image.width) * decoder.channels());
  readable(decoder.pixels(image.pixels.data()));
  if (decoder.channels() == 4) image.pixels = detail::from_cmyk(image.pixels, decoder.inverted());
  return image;
}

}  // namespace data_sets
