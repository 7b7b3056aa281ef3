// SPDX-License-Identifier: Apache-2.0
// Writes an examination to a file and reads it back: {"comp_doctor": 1, "low": "bf16", "entries": [...]}. Numbers come
// back bit for bit, so that two runs can be compared in a third process. All fields of a file are checked, since it
// comes from outside.
#pragma once

#include <cmath>
#include <comp/core/error.hpp>
#include <comp/doctor/examination.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {
namespace detail {

/// Returns the counts of a tensor's values.
inline json counts_json(const value_counts& v) {
  json to;
  to["values"] = v.values;
  to["zeros"] = v.zeros;
  to["nans"] = v.nans;
  to["infinities"] = v.infinities;
  to["smallest"] = v.smallest;
  to["largest"] = v.largest;
  to["sum"] = comp::json_of(v.sum);
  to["bits"] = v.bits;
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

inline json floats_json(const std::vector<float>& values) {
  return comp::json_of(std::vector<double>(values.begin(), values.end()));
}

inline constexpr std::int64_t most_values = std::int64_t{1} << 53;  // larger whole numbers are no exact doubles

/// Reads the counts of a tensor's values. They must add up: whoever reads shares of them divides by their sum.
inline value_counts counts_from(const json_reader& from) {
  from.only({"values", "zeros", "nans", "infinities", "smallest", "largest", "sum", "bits", "first_exponent",
             "exponents", "overflows"});
  const auto count = [&](std::string_view field) {
    return static_cast<std::uint64_t>(from[field].integer(0, most_values));
  };
  value_counts v{
      .values = count("values"),
      .zeros = count("zeros"),
      .nans = count("nans"),
      .infinities = count("infinities"),
      .smallest = static_cast<float>(from["smallest"].seconds()),
      .largest = static_cast<float>(from["largest"].seconds()),
      .sum = from["sum"].number(),
      .bits = static_cast<std::uint32_t>(from["bits"].integer(0, std::numeric_limits<std::uint32_t>::max()))};
  auto at = from["first_exponent"].integer(value_counts::lowest_exponent, 128) - value_counts::lowest_exponent;
  std::uint64_t finite = 0;
  from["exponents"].each([&](const json_reader& number) {
    if (at >= static_cast<std::int64_t>(v.exponents.size())) number.fail("no exponent above 127");
    finite += v.exponents[static_cast<std::size_t>(at++)] = static_cast<std::uint64_t>(number.integer(0, most_values));
  });
  if (finite + v.nans + v.infinities != v.values || v.zeros > v.exponents.front())
    from.fail("counts that add up to \"values\"");
  if (const auto formats = from.find("overflows")) {
    formats->each_field([&](const std::string& format, const json_reader& number) {
      const auto p = precision_of(format);
      if (!p) number.fail("the name of a precision before it");
      v.overflows[static_cast<std::size_t>(*p)] = static_cast<std::uint64_t>(number.integer(0, most_values));
    });
  }
  return v;
}

inline std::vector<float> floats_from(const json_reader& from) {
  std::vector<float> values;
  for (const double value : from.numbers()) values.push_back(static_cast<float>(value));
  return values;
}

/// Reads an entry. It may only read entries before it, so that those who follow inputs backwards come to an end.
inline examined examined_from(const json_reader& from, std::size_t index) {
  from.only({"name", "kind", "shape", "inputs", "values", "gradients", "sample", "gradient_sample", "backward",
             "constants", "error"});
  examined e{.name = from["name"].text(), .kind = from["kind"].text()};
  from["shape"].each([&](const json_reader& extent) { e.shape.push_back(extent.integer(0, most_values)); });
  from["inputs"].each([&](const json_reader& input) {
    e.inputs.push_back(static_cast<std::size_t>(input.integer(0, most_values)));
    if (e.inputs.back() >= index) input.fail("an entry before this one");
  });
  e.values = counts_from(from["values"]);
  e.sample = floats_from(from["sample"]);
  if (const auto gradients = from.find("gradients")) e.gradients = counts_from(*gradients);
  if (const auto sample = from.find("gradient_sample")) e.gradient_sample = floats_from(*sample);
  if (const auto order = from.find("backward")) e.backward = static_cast<std::size_t>(order->integer(1, most_values));
  if (const auto numbers = from.find("constants")) e.constants = numbers->numbers();
  if (const auto error = from.find("error")) e.error = error->seconds();
  return e;
}

}  // namespace detail

inline json json_of(const examination& e) {
  json to;
  to["comp_doctor"] = 1;
  to["low"] = name(e.low);
  to["entries"] = json::array();
  for (const examined& each : e.entries) {
    json entry;
    entry["name"] = each.name;
    entry["kind"] = each.kind;
    entry["shape"] = each.shape;
    entry["inputs"] = each.inputs;
    entry["values"] = detail::counts_json(each.values);
    entry["sample"] = detail::floats_json(each.sample);
    if (each.gradients.values > 0) entry["gradients"] = detail::counts_json(each.gradients);
    if (!each.gradient_sample.empty()) entry["gradient_sample"] = detail::floats_json(each.gradient_sample);
    if (each.backward > 0) entry["backward"] = each.backward;
    if (!each.constants.empty()) entry["constants"] = json_of(each.constants);
    if (!std::isnan(each.error)) entry["error"] = json_of(each.error);
    to["entries"].push_back(std::move(entry));
  }
  return to;
}

/// Throws: `file_error`, naming path and reason, if it cannot be written.
inline void save(const examination& e, const std::string& path) {
  detail::write_file(path, json_text(json_of(e)) + "\n");
}

/// Reads an examination. Throws: `file_error`, naming file, field, the value found and the value needed.
inline examination load_examination(const std::string& path) {
  const json_place place{.file = path, .line = 0, .remedy = "let the doctor examine and save again"};
  const json text = parse_json(detail::read_file(path, std::size_t{1} << 30), place);
  const json_reader from{text, place};
  from.only({"comp_doctor", "low", "entries"});
  (void)from["comp_doctor"].integer(1, 1);
  examination e{.low = from["low"].one_of<precision>(all_precisions.back())};
  from["entries"].each(
      [&](const json_reader& entry) { e.entries.push_back(detail::examined_from(entry, e.entries.size())); });
  return e;
}

}  // namespace comp
