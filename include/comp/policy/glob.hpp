// SPDX-License-Identifier: Apache-2.0
// Matches operator names with the wildcards '*' and '?'. fnmatch(3) is not used because it gives brackets a meaning,
// and operator names such as "layers[0]" contain them.
#pragma once

#include <cstddef>
#include <string_view>

namespace comp::policy {

/// Returns: whether `pattern` matches the whole of `text`; '*' is any run of characters, '?' any one. When a character
/// does not match, only the last '*' is tried again with one character more. So it takes at most |text| * |pattern|
/// steps; trying every '*' again would take exponentially many.
constexpr bool matches_glob(std::string_view text, std::string_view pattern) {
  std::size_t t = 0, p = 0, after_star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace comp::policy
