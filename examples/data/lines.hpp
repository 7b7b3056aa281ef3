// SPDX-License-Identifier: Apache-2.0
// Reads text by lines and fields: separated by tabs, or as CSV with quoted fields (RFC 4180).
#pragma once

#include <charconv>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <examples/data/printable.hpp>
#include <string>
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

/// Throws: `file_error`, naming the line, for a text that is not a whole number in [least, most].
inline std::int64_t whole_number(std::string_view text, std::int64_t least, std::int64_t most, std::string_view name,
                                 std::size_t line) {
  std::int64_t value = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  require<file_error>(wrong == std::errc{} && end == text.data() + text.size() && value >= least && value <= most,
                      "{} line {} has \"{}\" (a whole number from {} to {} is needed): fetch the file again", name,
                      line, printable(text), least, most);
  return value;
}

/// Returns: the rows of a CSV text, the header first. Throws: `file_error`, naming the line, for a quote that is not
/// closed or is inside a field, and for rows of different widths.
inline std::vector<std::vector<std::string>> parse_csv(std::string_view text, std::string_view name) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::size_t line = 1, begun = 1;
  for (std::size_t at = 0; at < text.size();) {
    std::string field;
    if (text[at] == '"') {
      for (++at;; ++at) {
        require<file_error>(at < text.size(),
                            "{} line {} has a quoted field without an end (the file ends first): fetch it again", name,
                            begun);
        if (text[at] == '"' && !text.substr(at + 1).starts_with('"')) break;
        if (text[at] == '"') ++at;
        line += text[at] == '\n';
        field += text[at];
      }
      ++at;
      require<file_error>(
          at == text.size() || text[at] == ',' || text[at] == '\n' || text[at] == '\r',
          "{} line {} has text behind a quoted field (a comma or the line's end may follow): fetch it again", name,
          line);
    } else {
      const std::size_t end = std::min(text.find_first_of(",\r\n", at), text.size());
      field = text.substr(at, end - at);
      at = end;
    }
    row.push_back(std::move(field));
    if (at < text.size() && text[at] == ',') {
      ++at;
      if (at == text.size() || text[at] == '\n' || text[at] == '\r')
        row.emplace_back();
      else
        continue;
    }
    if (text.substr(at).starts_with("\r\n")) ++at;
    if (at < text.size()) ++at;
    const std::size_t width = rows.empty() ? row.size() : rows.front().size();
    require<file_error>(row.size() == width,
                        "{} line {} has {} fields ({} as in the header are needed): fetch the file again", name, begun,
                        row.size(), width);
    rows.push_back(std::move(row));
    row.clear();
    begun = ++line;
  }
  return rows;
}

}  // namespace data_sets
