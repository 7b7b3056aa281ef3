// SPDX-License-Identifier: Apache-2.0
// Shows an examination as one HTML file, in the page of the search's report (observe/report.hpp): the faults, and every
// operator with its values over the range of FP16.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <comp/doctor/examination_text.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/observe/report.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace comp {
namespace detail {

/// Returns the range of values, and the heights, of 20 at most, of the bars for each power of two from 2^-40 to 2^20;
/// values beyond are counted at the ends.
inline json values_json(const value_counts& v) {
  constexpr int low = -40, high = 20;
  std::array<std::uint64_t, high - low + 1> counts{};
  for (std::size_t i = 0; i < v.exponents.size(); ++i) {
    const int exponent = std::clamp(static_cast<int>(i) + value_counts::lowest_exponent, low, high);
    counts[static_cast<std::size_t>(exponent - low)] += v.exponents[i] - (i == 0 ? v.zeros : 0);
  }
  json to{{"range", range_text(v)}, {"largest", v.values > 0 ? comp::json_of(double{v.largest}) : json()}};
  if (v.counted() == 0) return to;
  const std::uint64_t most = std::max<std::uint64_t>(1, *std::ranges::max_element(counts));
  for (const std::uint64_t count : counts)
    to["bars"].push_back(count == 0 ? 0 : std::max<std::uint64_t>(1, 20 * count / most));
  return to;
}

/// Returns what of the values a format loses: "0.5% zero, 94% over", and the share of both to sort by.
inline json lost_json(const value_counts& v, precision p) {
  const std::string low = vanish_text(v, p), high = overflow_text(v, p);
  const auto lost = static_cast<double>(v.vanish(p) + v.overflow(p));
  return {{"text", (low.empty() ? "" : low + " zero") + (low.empty() || high.empty() ? "" : ", ") +
                       (high.empty() ? "" : high + " over")},
          {"share", lost / static_cast<double>(std::max<std::uint64_t>(1, v.counted()))}};
}

}  // namespace detail

/// Returns the page as one HTML text, with the given faults. It has the entries up to the 20,000th.
inline std::string html_text(const examination& e, const std::vector<fault>& wrong) {
  const auto operators = std::ranges::count_if(e.entries, &examined::is_operator);
  const std::string title = wrong.empty()       ? fmt::format("Nothing is wrong in {} operators", operators)
                            : wrong.size() == 1 ? "One fault"
                                                : fmt::format("{} faults", wrong.size());
  json to{{"comp_examination", 1}, {"title", title}, {"low", name(e.low)}};
  for (const char* list : {"entries", "faults", "formats"}) to[list] = json::array();
  for (const precision p : detail::examined_formats) to["formats"].push_back(name(p));
  for (std::size_t i = 0; i < std::min<std::size_t>(e.entries.size(), 20'000); ++i) {
    const examined& each = e.entries[i];
    json entry{{"number", i}, {"name", each.name}, {"kind", each.kind}, {"faults", json::array()}};
    entry["error"] = json_of(each.error);
    entry["error_text"] = detail::low_error_text(each.error);
    entry["values"] = detail::values_json(each.values);
    entry["gradients"] = detail::values_json(each.gradients);
    for (const precision p : detail::examined_formats) entry["lost"].push_back(detail::lost_json(each.values, p));
    to["entries"].push_back(std::move(entry));
  }
  detail::text_rows rows{{"fault", "what is wrong"}};
  for (const fault& f : wrong) {
    rows.push_back({std::string{name(f.kind)}, f.text});
    to["faults"].push_back({{"entry", f.entry}, {"kind", name(f.kind)}, {"backward", f.backward}, {"text", f.text}});
    if (f.entry < to["entries"].size()) to["entries"][f.entry]["faults"].push_back(name(f.kind));
  }
  return detail::page(title, {{"What is wrong:", rows}}, json_text(to));
}

inline std::string html_text(const examination& e) { return html_text(e, faults(e)); }

/// Writes the page to a file. Throws: `file_error` if it cannot be written; an old file is then still there.
inline void write_html(const examination& e, const std::string& path) { detail::write_file(path, html_text(e)); }

}  // namespace comp
