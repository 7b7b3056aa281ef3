// SPDX-License-Identifier: Apache-2.0
// UCI's optical digits: for each image a CSV line of 64 values from 0 to 16 (8 rows of 8 pixels) and the digit. It is
// the data set of the examples, since it is small enough to be shipped.
// Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository
#pragma once

#include <charconv>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <examples/data/file_bytes.hpp>
#include <examples/data/images.hpp>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

namespace data_sets {

using comp::file_error;
using comp::require;

namespace detail {

/// Reads the integers of a CSV text, and counts lines for its messages.
class digit_lines {
 public:
  digit_lines(std::string_view text, std::string_view name) : text_{text}, name_{name} {}

  bool at_end() const { return at_ == text_.size(); }

  /// Returns: the next integer, which must be in [0, largest]. A comma must follow it, or the end of the line.
  std::int32_t next(std::int32_t largest, bool last_of_line, int column) {
    std::int32_t value = -1;
    const auto [end, problem] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    const bool is_valid = problem == std::errc{} && value >= 0 && value <= largest;
    require<file_error>(is_valid,
                        "{} has no whole number from 0 to {} at {} (line {}, column {}): check that it is the CSV of "
                        "the digits",
                        name_, largest, at_, line_, column);
    at_ = static_cast<std::size_t>(end - text_.data());
    last_of_line ? end_line() : expect(',', column);
    return value;
  }

 private:
  void expect(char wanted, int column) {
    require<file_error>(at_ < text_.size() && text_[at_] == wanted,
                        "{} has only {} values in line {}, which breaks off at {} "
                        "(a line has 64 values and a digit, between commas): fetch it again",
                        name_, column, line_, at_);
    ++at_;
  }
  void end_line() {
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    require<file_error>(at_ == text_.size() || text_[at_] == '\n',
                        "{} has more behind the digit of line {}, at {} "
                        "(a line has 64 values and a digit): check that it is the CSV of the digits",
                        name_, line_, at_);
    if (at_ < text_.size()) ++at_;
    ++line_;
  }

  std::string_view text_;
  std::string_view name_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

}  // namespace detail

/// Returns: images (N,1,8,8), whose values 0 to 16 are scaled to 0 to 255.
/// Throws: `file_error`, with line and offset, for an empty text and for a line that is not 64 values and a digit.
inline images parse_digits(std::span<const std::byte> bytes, std::string_view name) {
  require<file_error>(!bytes.empty(), "{} is empty (lines of 64 values and a digit are expected): fetch it again",
                      name);
  detail::digit_lines lines{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}, name};
  images data{.channels = 1, .height = 8, .width = 8, .classes = 10};
  while (!lines.at_end()) {
    for (int column = 1; column <= 64; ++column) {
      data.pixels.push_back(static_cast<std::uint8_t>((lines.next(16, false, column) * 255 + 8) / 16));
    }
    data.labels.push_back(lines.next(9, true, 65));
    ++data.count;
  }
  return data;
}

/// Reads the CSV file, plain or gzip.
inline images read_digits(const std::filesystem::path& path, std::size_t limit = default_limit) {
  return parse_digits(file_bytes(path, limit), fmt::format("\"{}\"", path.string()));
}

}  // namespace data_sets
