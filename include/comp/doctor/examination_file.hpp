// SPDX-License-Identifier: Apache-2.0
// Writes an examination to a file and reads it back: {"comp_doctor": 1, "low": "bf16", "entries": [...]}. Numbers come
// back bit for bit, so that two runs can be compared in a third process. All fields of a file are checked, since it
// comes from outside.
#pragma once

#include <comp/core/error.hpp>
#include <comp/doctor/examination.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// Returns the counts of a tensor's values.
inline json json_of(const value_counts& v) {
  json to = member_writer::written(v);
  // Most exponents of a tensor have no values, so only the range that has some is written.
  std::size_t first = 0, end = v.exponents.size();
  while (first < end && v.exponents[first] == 0) ++first;
  while (end > first && v.exponents[end - 1] == 0) --end;
  to["first_exponent"] = static_cast<int>(first) + value_counts::lowest_exponent;
  to["exponents"] = std::vector<std::uint64_t>(v.exponents.begin() + static_cast<std::ptrdiff_t>(first),
                                               v.exponents.begin() + static_cast<std::ptrdiff_t>(end));
  for (const precision p : all_precisions) {
    if (v.overflow(p) > 0) to["overflows"][std::string{name(p)}] = v.overflow(p);
  }
  return to;
}

/// Reads the counts of a tensor's values. They must add up: whoever reads shares of them divides by their sum.
inline void read_json(const json_reader& from, value_counts& to) {
  to = {};
  member_reader::read(from, to, {"first_exponent", "exponents", "overflows"});
  auto at = from["first_exponent"].integer(value_counts::lowest_exponent, 128) - value_counts::lowest_exponent;
  std::uint64_t finite = 0;
  from["exponents"].each([&](const json_reader& number) {
    if (at >= static_cast<std::int64_t>(to.exponents.size())) number.fail("no exponent above 127");
    finite += to.exponents[static_cast<std::size_t>(at++)] = static_cast<std::uint64_t>(number.integer());
  });
  if (finite + to.nans + to.infinities != to.values || to.zeros > to.exponents.front())
    from.fail("counts that add up to \"values\"");
  if (const auto formats = from.find("overflows")) {
    formats->each_field([&](const std::string& format, const json_reader& number) {
      const auto p = precision_of(format);
      if (!p) number.fail("the name of a precision before it");
      to.overflows[static_cast<std::size_t>(*p)] = static_cast<std::uint64_t>(number.integer());
    });
  }
}

inline json json_of(const examination& e) {
  return {{"comp_doctor", 1}, {"low", name(e.low)}, {"entries", json_of(e.entries)}};
}

/// Throws: `file_error`, naming path and reason, if it cannot be written.
inline void save(const examination& e, const std::string& path) {
  detail::write_file(path, json_text(json_of(e)) + "\n");
}

/// Reads an examination. Entries may only read entries before them, so that those who follow inputs backwards come to
/// an end. Throws: `file_error`, naming file, field, the value found and the value needed.
inline examination load_examination(const std::string& path) {
  const json_place place{.file = path, .line = 0, .remedy = "let the doctor examine and save again"};
  const json text = parse_json(detail::read_file(path, std::size_t{1} << 30), place);
  const json_reader from{text, place};
  from.only({"comp_doctor", "low", "entries"});
  (void)from["comp_doctor"].integer(1, 1);
  examination e{.low = read_json<precision>(from["low"])};
  read_json(from["entries"], e.entries);
  from["entries"].each([index = std::int64_t{0}](const json_reader& entry) mutable {
    entry["inputs"].each([&](const json_reader& input) {
      if (input.integer() >= index) input.fail("an entry before this one");
    });
    ++index;
  });
  return e;
}

}  // namespace comp
