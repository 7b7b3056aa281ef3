// SPDX-License-Identifier: Apache-2.0
// Wildcards over operator names: '*' and '?' only. fnmatch(3) reads brackets too, which names such as "layers[0]" have.
#pragma once

#include <cstddef>
#include <string_view>

namespace comp::policy {

/// True when `pattern` covers the whole of `text`: '*' is any run of characters, '?' any one. At most |text| *
/// |pattern| steps, whatever the pattern.
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
