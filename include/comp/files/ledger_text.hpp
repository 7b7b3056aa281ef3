// SPDX-License-Identifier: Apache-2.0
// Formats and parses the lines of a ledger (ledger_lines.hpp). Each line is a JSON object that ends with a checksum, so
// that damage and edits are noticed; a checksum of the whole file could not be kept up to date by appending.
#pragma once

#include <algorithm>
#include <boost/crc.hpp>
#include <cmath>
#include <comp/core/linkage.hpp>
#include <comp/core/names.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/ledger_lines.hpp>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

COMP_INLINE std::string as_recorded(const std::string& text) { return json::parse(json_text(text)).get<std::string>(); }

/// Returns a CRC-32, which finds damage and careless edits. It is no protection against a forger, who could compute it
/// too.
inline std::string crc32_of(std::string_view text) {
  boost::crc_32_type sum;
  sum.process_bytes(text.data(), text.size());
  return fmt::format("{:08x}", sum.checksum());
}

/// Returns a JSON object's text as a line of a ledger, with its checksum as the last field: {...,"crc32":"1c291ca3"}
inline std::string sealed(std::string object) {
  const std::string sum = crc32_of(object);
  object.pop_back();
  return object + fmt::format(",\"crc32\":\"{}\"}}\n", sum);
}

/// Throws: `file_error` for a line whose checksum is missing or wrong.
inline void require_seal(std::string_view line, const json_place& place) {
  constexpr std::string_view before = ",\"crc32\":\"", after = "\"}";
  constexpr std::size_t digits = 8, size = before.size() + digits + after.size();
  const std::string_view seal = line.substr(line.size() - std::min(size, line.size()));
  require<file_error>(seal.size() == size && seal.starts_with(before) && seal.ends_with(after),
                      "{}: no checksum at its end (it was changed after it was written, or by comp 0.1): {}",
                      place.str(), place.remedy);
  const std::string sum = crc32_of(std::string{line.substr(0, line.size() - size)} + '}');
  require<file_error>(seal.substr(before.size(), digits) == sum,
                      "{}: its checksum is not that of its text, which is {} (it was changed after it was written): {}",
                      place.str(), sum, place.remedy);
}

COMP_INLINE std::string ledger_header(const std::string& signature) {
  json header;  // fields are written in alphabetical order, so a ledger begins with "comp_ledger"
  header["comp_ledger"] = 2;
  header["signature"] = signature;
  header["started"] = time_now("%Y-%m-%dT%H:%M:%SZ", true);
  return sealed(json_text(header));
}

COMP_INLINE std::string ledger_line(const trial& t) { return sealed(json_text(json_of(t))); }

COMP_INLINE std::string ledger_end(const plan& p, std::size_t runs, double speedup) {
  json line;
  line["end"] = true;
  line["plan"] = p.str();
  line["runs"] = runs;
  line["speedup"] = comp::json_of(speedup);
  return sealed(json_text(line));
}

/// Reads the first line. Version 2 is the only one: ledgers of comp 0.1 have no checksums.
inline void read_header(const json_reader& from, ledger_content& to) {
  from.only({"comp_ledger", "signature", "started"});
  from["comp_ledger"].integer(2, 2);
  from["started"].text();
  to.signature = from["signature"].text();
}

/// Reads a run, or the line that ends a search. Runs behind that line are of the training after the search.
inline void read_line(const json_reader& from, ledger_content& to) {
  to.complete = from.find("end").has_value();
  if (!to.complete) {
    to.trials.push_back(read_json<trial>(from));
    return;
  }
  from.only({"end", "plan", "runs", "speedup"});
  if (!from["end"].boolean()) from["end"].fail("true");
  read_json<plan>(from["plan"]);
  from["runs"].integer();
  from["speedup"].number();
}

COMP_INLINE void require_ledger(std::string_view text, const std::string& path) {
  require<file_error>(text.substr(0, ledger_start.size()) == ledger_start.substr(0, text.size()),
                      "\"{}\" is no ledger (its first line does not begin with {}): give another file", path,
                      ledger_start);
}

COMP_INLINE ledger_content parse_ledger(std::string_view text, const std::string& path) {
  ledger_content content;
  json_place place{path, 0,
                   fmt::format("delete the line, or {} another file",
                               by_language("start again with ledger::mode::restart or", "give"))};
  require_ledger(text, path);
  // Only lines that end are read: a kill within a write leaves a line without an end, whose run is made again.
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', content.usable_bytes)) {
    const std::string_view line = text.substr(content.usable_bytes, end - content.usable_bytes);
    ++place.line;
    require<file_error>(line.size() <= ledger_line_limit, "{}: {} bytes long (no run is that large): {}", place.str(),
                        line.size(), place.remedy);
    require_seal(line, place);
    json document = parse_json(line, place);
    document.erase("crc32");
    const json_reader from{document, place};
    place.line == 1 ? read_header(from, content) : read_line(from, content);
    content.usable_bytes = end + 1;
  }
  return content;
}

/// Returns the fields of a signature, "key=value; key=value", by their names.
inline std::map<std::string, std::string> signature_fields(std::string_view signature) {
  std::map<std::string, std::string> fields;
  each_name(signature, ";", [&](std::string_view part) {
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    const std::size_t end = std::min(part.find('='), part.size());
    if (!part.empty()) fields[std::string{part.substr(0, end)}] += part.substr(std::min(end + 1, part.size()));
  });
  return fields;
}

/// Returns the numbers of a field such as "2.5,2.25"; none if it has anything else.
inline std::vector<double> numbers_of(const std::string& field) {
  std::vector<double> numbers;
  for (const char* at = field.c_str(); *at != '\0';) {
    char* end = nullptr;
    numbers.push_back(std::strtod(at, &end));
    if (end == at) return {};
    at = *end == ',' ? end + 1 : end;
  }
  return numbers;
}

/// True if FP32's first losses here are those of the recorded search. How far apart they may be is taken from that
/// search, whose baseline ran the same batches a second time. If the repeat had the same losses but for roundings, so
/// must these (1e-5); else they may differ by ten times as much as the repeat did, or by 1% of the loss.
inline bool same_losses(const std::string& recorded, const std::string& now, const std::vector<trial>& trials) {
  if (recorded == now || trials.empty()) return true;
  const std::vector<double> before = numbers_of(recorded), here = numbers_of(now);
  if (before.empty() || before.size() != here.size()) return false;
  const auto farthest = [&](const std::vector<double>& from) {
    double most = 0, scale = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double off = std::abs(from[i] - before[i]);
      most = std::isfinite(off) ? std::max(most, off) : std::numeric_limits<double>::infinity();
      scale = std::max(scale, std::abs(before[i]));
    }
    return most / std::max(scale, 1e-300);
  };
  const auto again = std::find_if(trials.begin(), trials.end(), [&](const trial& t) {
    return t.stage == stage::baseline && t.repeat == 0 && t.sample.curve.size() >= before.size();
  });
  constexpr double roundings = 1e-5, part = 0.01;
  const double own = again == trials.end() ? part / 10 : farthest(again->sample.curve);
  return farthest(here) <= (own <= roundings ? roundings : std::max(10 * own, part));
}

COMP_INLINE std::map<std::string, std::pair<std::string, std::string>> differing_fields(
    std::string_view recorded, std::string_view now, const std::vector<trial>& trials) {
  std::map<std::string, std::pair<std::string, std::string>> fields;
  for (auto& [name, value] : signature_fields(recorded)) fields[name].first = value;
  for (auto& [name, value] : signature_fields(now)) fields[name].second = value;
  std::erase_if(fields, [&](const auto& field) {
    const auto& [before, here] = field.second;
    return before == here || (field.first == "losses" && same_losses(before, here, trials));
  });
  return fields;
}

COMP_INLINE std::string signature_difference(const std::string& path,
                                             const std::map<std::string, std::pair<std::string, std::string>>& fields) {
  std::string text;
  for (const auto& [name, values] : fields) {
    std::string_view before = values.first, here = values.second;
    const auto ends_word = [](char c) { return c == ' ' || c == ','; };
    // Drops the words that both begin with, except the last one: it says which value differs.
    std::size_t same = 0, word = 0, before_it = 0;
    for (; same < std::min(before.size(), here.size()) && before[same] == here[same]; ++same) {
      if (ends_word(before[same])) before_it = std::exchange(word, same + 1);
    }
    before.remove_prefix(before_it), here.remove_prefix(before_it);
    for (same = 0, word = 0; same < std::min(before.size(), here.size()); ++same) {  // drops words that both end with
      const char c = before[before.size() - 1 - same];
      if (c != here[here.size() - 1 - same]) break;
      if (ends_word(c)) word = same + 1;
    }
    before.remove_suffix(word), here.remove_suffix(word);
    const auto shown = [](std::string_view value) { return value.empty() ? "nothing" : in_quotes(value, 120); };
    text += fmt::format("{} {} is {} there and {} here", text.empty() ? "" : ",", in_quotes(name, 40), shown(before),
                        shown(here));
  }
  return fmt::format(
      "ledger \"{}\" belongs to another search:{} (its runs would not be this search's): give another file, or {}",
      path, text, by_language("ledger::mode::restart to overwrite it", "delete this one"));
}

}  // namespace comp::detail
