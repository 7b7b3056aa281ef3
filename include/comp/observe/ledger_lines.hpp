// SPDX-License-Identifier: Apache-2.0
// The text of a ledger and what it says: see observe/ledger.hpp, which keeps the file.
#pragma once

#include <algorithm>
#include <comp/observe/json.hpp>
#include <cstddef>
#include <ctime>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace comp::detail {

inline constexpr std::size_t ledger_limit = std::size_t{4} << 30;       // bytes of a file
inline constexpr std::size_t ledger_line_limit = std::size_t{1} << 28;  // bytes of a line
inline constexpr std::string_view ledger_start = "{\"comp_ledger\":";

struct ledger_content {
  std::string signature = {};
  std::vector<trial> trials = {};
  bool complete = false;         // the last line is an end marker
  std::size_t usable_bytes = 0;  // up to the end of the last whole line; 0: not even the header is whole
};

/// Now, as 2026-01-31T12:00:00Z.
inline std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

/// A text as it comes back from a file: bytes that are no UTF-8 are replaced.
template <class Json = json>
std::string as_recorded(const std::string& text) {
  return Json::parse(json_text<Json>(text)).template get<std::string>();
}

template <class Json = json>
std::string ledger_header(const std::string& signature) {
  Json header;  // its first field, in the alphabet and so in the text, is comp_ledger
  header["comp_ledger"] = 1;
  header["signature"] = signature;
  header["started"] = utc_now();
  return json_text<Json>(header);
}

template <class Json>
void read_header(const basic_json_reader<Json>& from, ledger_content& to) {
  from.only({"comp_ledger", "signature", "started"});
  from["comp_ledger"].integer(1, 1);
  from["started"].text();
  to.signature = from["signature"].text();
}

template <class Json>
void read_line(const basic_json_reader<Json>& from, ledger_content& to) {
  to.complete = from.find("end").has_value();
  if (!to.complete) {
    to.trials.push_back(trial_from(from));
    return;
  }
  from.only({"end", "plan", "runs", "speedup"});
  if (!from["end"].boolean()) from["end"].fail("true");
  plan_from(from["plan"]);
  from["runs"].integer(0, std::int64_t{1} << 53);
  from["speedup"].number();
}

/// Throws: `file_error` for a text that is neither a ledger nor the beginning of one: not ours to overwrite.
inline void require_ledger(std::string_view text, const std::string& path) {
  require<file_error>(text.substr(0, ledger_start.size()) == ledger_start.substr(0, text.size()),
                      "\"{}\" is no ledger (its first line does not begin with {}): give another file", path,
                      ledger_start);
}

/// Reads the text of a ledger. A last line without its newline was cut off by a kill and is not counted as usable.
/// Throws: `file_error`, naming the line, for any other line that is not as comp writes it.
template <class Json = json>
ledger_content parse_ledger(std::string_view text, const std::string& path) {
  ledger_content content;
  json_place place{path, 0, "mend the line, or start again with ledger::mode::restart or another file"};
  require_ledger(text, path);
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', content.usable_bytes)) {
    const std::string_view line = text.substr(content.usable_bytes, end - content.usable_bytes);
    ++place.line;
    require<file_error>(line.size() <= ledger_line_limit, "{}: {} bytes long (no run is that large): {}", place.str(),
                        line.size(), place.remedy);
    const Json document = parse_json<Json>(line, place);
    const basic_json_reader<Json> from{document, place};
    place.line == 1 ? read_header(from, content) : read_line(from, content);
    content.usable_bytes = end + 1;
  }
  return content;
}

/// The "key=value" parts of a signature.
inline std::set<std::string> signature_parts(std::string_view signature) {
  std::set<std::string> parts;
  while (!signature.empty()) {
    const std::size_t end = std::min(signature.find(';'), signature.size());
    std::string_view part = signature.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (!part.empty()) parts.emplace(part);
    signature.remove_prefix(std::min(end + 1, signature.size()));
  }
  return parts;
}

/// What to tell when a ledger belongs to another search.
template <class Json = json>
std::string signature_difference(const std::string& path, const std::string& recorded, const std::string& now) {
  const auto listed = [](const std::set<std::string>& from, const std::set<std::string>& without) {
    std::string text;
    for (const auto& part : from) {
      if (!without.contains(part)) text += fmt::format("{}{}", text.empty() ? "" : "; ", part);
    }
    return text.empty() ? std::string{"nothing more"} : in_quotes<Json>(text, 400);
  };
  const auto theirs = signature_parts(recorded), ours = signature_parts(now);
  return fmt::format(
      "ledger \"{}\" belongs to another search: it has {}, this search has {} (its runs would not be "
      "this search's): give another file, or ledger::mode::restart to overwrite it",
      path, listed(theirs, ours), listed(ours, theirs));
}

}  // namespace comp::detail
