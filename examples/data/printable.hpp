// SPDX-License-Identifier: Apache-2.0
// Text from a file as messages show it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace data_sets {

/// At most `most` bytes, control characters and what is not ASCII as '?'.
inline std::string printable(std::string_view text, std::size_t most = 40) {
  std::string shown{text.substr(0, most)};
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

}  // namespace data_sets
