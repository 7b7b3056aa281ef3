// SPDX-License-Identifier: Apache-2.0
// How messages show text from a file, which may hold any bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace data_sets {

/// Returns: at most `most` bytes of the text, with '?' for control characters and for bytes that are not ASCII.
inline std::string printable(std::string_view text, std::size_t most = 40) {
  std::string shown{text.substr(0, most)};
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

}  // namespace data_sets
