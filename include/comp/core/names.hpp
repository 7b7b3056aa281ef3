// SPDX-License-Identifier: Apache-2.0
// Lists of names as texts, with blanks or newlines between the names: a list of hundred operators in ten lines.
#pragma once

#include <string_view>

namespace comp {

/// Calls `take` with each name of a text that has one or more of the characters `between` between names.
constexpr void each_name(std::string_view names, std::string_view between, auto&& take) {
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find_first_of(between));
    if (!name.empty()) take(name);
    names.remove_prefix(name.size() < names.size() ? name.size() + 1 : name.size());
  }
}

/// True if `name` is one of the names of a text, with blanks or newlines between them.
constexpr bool has_name(std::string_view names, std::string_view name) {
  bool found = false;
  each_name(names, " \n", [&](std::string_view each) { found = found || each == name; });
  return found;
}

}  // namespace comp
