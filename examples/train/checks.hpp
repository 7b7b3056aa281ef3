// SPDX-License-Identifier: Apache-2.0
// Checks the values of the command line. CLI11's own checks of numbers accept nan and infinity, wrap negative numbers
// around to large ones, cut numbers that are too large, and read 010 as eight.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <comp/core/error.hpp>
#include <comp/core/precision.hpp>
#include <comp/scaling/settings.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "options.hpp"

namespace train {

namespace detail {

template <class T>
CLI::Validator number(T least, T most, const char* kind, const std::string& range) {
  const auto check = [=](std::string& text) -> std::string {
    T value{};
    const char* end = text.data() + text.size();
    const auto [read, fault] = std::from_chars(text.data(), end, value);
    if (fault == std::errc{} && read == end && value >= least && value <= most) {
      text = fmt::format("{}", value);  // without leading zeros, which CLI11 would read as octal
      return {};
    }
    return fmt::format("\"{}\" (it must be {}, {}): change it", text, kind, range);
  };
  return {check, range};
}

}  // namespace detail

/// Checks for a whole number in decimal digits. It is for ->transform(), which gives CLI11 the checked text.
inline CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
  return detail::number(least, most, "a whole number", fmt::format("{} to {}", least, most));
}
/// Checks for a finite number within a range, whose ends are included.
inline CLI::Validator real(double least, double most) {
  return detail::number(least, most, "a number", fmt::format("{} to {}", least, most));
}
/// Checks for a finite number above 0.
inline CLI::Validator positive() {
  return detail::number(std::numeric_limits<double>::min(), std::numeric_limits<double>::max(), "a number",
                        "above 0 and finite");
}

/// Checks that a size of memory, as "800MiB", begins with a digit, so that CLI11's conversion of units sees no sign. Of
/// two ->transform(), CLI11 applies the later one first.
inline CLI::Validator digits_first() {
  return {[](std::string& text) -> std::string {
            if (!text.empty() && text[0] >= '0' && text[0] <= '9') return {};
            return fmt::format("\"{}\" (it must be a number of bytes, or as 800MiB or 4GiB): change it", text);
          },
          ""};
}

inline std::string check_rules(const std::string& text) {
  try {
    (void)rivals_of(text);
  } catch (const comp::settings_error& e) {
    return e.what();
  }
  return {};
}

inline std::string check_scaling(const std::string& text) {
  try {
    (void)comp::scaling::preset(text);
  } catch (const comp::settings_error& e) {
    return e.what();
  }
  return {};
}

/// Returns: the message for a text that is neither "auto" nor names of precisions joined by commas; else nothing.
inline std::string check_precisions(const std::string& text) {
  if (text == "auto") return {};
  if (text.empty()) return "no precision is named: name them joined by commas, as in bf16,fp16";
  for (const std::string& part : split(text)) {
    if (!comp::precision_of(std::string_view{part})) {
      return "\"" + part + "\" is no precision (" + comp::names_of(comp::all_precisions) +
             " are): name them joined by commas, as in bf16,fp16";
    }
  }
  return {};
}

}  // namespace train
