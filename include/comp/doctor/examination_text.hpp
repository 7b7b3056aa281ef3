// SPDX-License-Identifier: Apache-2.0
// Shows an examination: on a terminal with a line for each operator, and as one HTML file, in the page of the search's
// report (observe/report.hpp), with each operator's values over the range of FP16. Both begin with the faults.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/doctor/examination.hpp>
#include <comp/doctor/faults.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/observe/report.hpp>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace comp {
namespace detail {

/// Returns a text such as "1.2e-07 to 5.11", "0" or "3 NaN, 1 infinite".
inline std::string range_text(const value_counts& v) {
  std::string text = v.values == 0   ? ""
                     : v.largest > 0 ? fmt::format("{:.2g} to {:.3g}", v.smallest, v.largest)
                     : v.finite()    ? "0"
                                     : "";
  if (v.nans > 0) text += fmt::format("{}{} NaN", text.empty() ? "" : ", ", v.nans);
  if (v.infinities > 0) text += fmt::format("{}{} infinite", text.empty() ? "" : ", ", v.infinities);
  return text;
}

/// Returns a share as a text: "" for none, "<0.1%" or "12%".
inline std::string part_text(std::uint64_t part, std::uint64_t of) {
  if (part == 0 || of == 0) return "";
  const double share = 100 * static_cast<double>(part) / static_cast<double>(of);
  return share < 0.1 ? "<0.1%" : fmt::format("{:.{}f}%", share, share < 10 ? 1 : 0);
}
/// The shares of the nonzero values that become 0 in the format, and that are too large for it.
inline std::string vanish_text(const value_counts& v, precision p) { return part_text(v.vanish(p), v.counted()); }
inline std::string overflow_text(const value_counts& v, precision p) { return part_text(v.overflow(p), v.counted()); }

inline std::string low_error_text(double error) {
  return std::isnan(error) ? "" : std::isinf(error) ? "out of range" : fmt::format("{:.2g}", error);
}

/// The formats that a table has columns for.
inline constexpr std::array examined_formats{precision::bf16, precision::fp16, precision::fp8_e4m3,
                                             precision::fp8_e5m2};

}  // namespace detail

/// Returns the indices of the `most` worst entries: those with faults first, then those with the largest error in the
/// low precision.
inline std::vector<std::size_t> worst(const examination& e, const std::vector<fault>& wrong, std::size_t most) {
  std::vector<std::size_t> order(e.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto rank = [&](std::size_t i) {
    const double error = e.entries[i].error;
    return std::tuple{std::ranges::find(wrong, i, &fault::entry) - wrong.begin(), std::isnan(error) ? 0 : -error, i};
  };
  std::ranges::sort(order, {}, rank);
  order.resize(std::min(most, order.size()));
  return order;
}

/// Returns the faults in sentences, then a line for each entry of `rows` with its range, and the shares of its values
/// that vanish and that overflow in each format.
inline std::string table(const examination& e, const std::vector<fault>& wrong, const std::vector<std::size_t>& rows) {
  using namespace detail;
  std::string text = wrong.empty() ? "nothing is wrong\n" : "";
  for (const fault& f : wrong) text += fmt::format("{}{}: {}\n", name(f.kind), f.backward ? " (backward)" : "", f.text);
  std::size_t width = 8;
  for (const std::size_t i : rows) width = std::max(width, e.entries[i].name.size());
  text += fmt::format("\n{:<{}}  {:<24}", "operator", width, "range");
  for (const precision p : examined_formats) text += fmt::format("  {:>15}", fmt::format("{} 0/over", name(p)));
  text += fmt::format("  {:<24}  {:>8}\n", "gradients", fmt::format("{} error", name(e.low)));
  for (const std::size_t i : rows) {
    const examined& each = e.entries[i];
    std::string line = fmt::format("{:<{}}  {:<24}", each.name, width, range_text(each.values));
    for (const precision p : examined_formats) {
      const std::string low = vanish_text(each.values, p), high = overflow_text(each.values, p);
      line += fmt::format("  {:>15}", low.empty() && high.empty() ? "" : low + "/" + high);
    }
    line += fmt::format("  {:<24}  {:>8}", range_text(each.gradients), low_error_text(each.error));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

/// As above, with all entries in the order of the step.
inline std::string table(const examination& e) {
  std::vector<std::size_t> all(e.entries.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return table(e, faults(e), all);
}

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
