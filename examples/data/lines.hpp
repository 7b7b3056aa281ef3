// SPDX-License-Identifier: Apache-2.0
// Reads text by lines, and fields of a line.
#pragma once

#include <comp/core/error.hpp>
#include <cstddef>
#include <string_view>
#include <vector>

namespace data_sets {

using comp::file_error;
using comp::require;

/// Calls f(line, number from 1) for each line that is not empty. A line may also end with "\r\n".
void for_each_line(std::string_view text, auto&& f) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) f(line, number);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

inline std::vector<std::string_view> fields(std::string_view line, char separator) {
  std::vector<std::string_view> found;
  for (;;) {
    const std::size_t end = line.find(separator);
    found.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return found;
    line.remove_prefix(end + 1);
  }
}

}  // namespace data_sets
