// SPDX-License-Identifier: Apache-2.0
// Shows an examination as one HTML file, in the style of the search's report: the faults, and every operator with its
// values over the range of FP16. Names of operators come from the user's model, so they are escaped.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/doctor/examination_text.hpp>
#include <comp/files/file.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_template.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace comp {
namespace detail {

/// Draws the share of values at each power of two from 2^-40 to 2^20; values beyond are counted at the ends. FP16 holds
/// the values between the two lines; those left of the first one become 0.
inline std::string exponent_strip(const value_counts& v) {
  constexpr int low = -40, high = 20, step = 2;
  std::vector<std::uint64_t> bars(high - low + 1);
  for (std::size_t i = 0; i < v.exponents.size(); ++i) {
    const int exponent = static_cast<int>(i) + value_counts::lowest_exponent;
    const std::uint64_t count = v.exponents[i] - (i == 0 ? v.zeros : 0);
    bars[static_cast<std::size_t>(std::clamp(exponent, low, high) - low)] += count;
  }
  const auto most = static_cast<double>(std::max<std::uint64_t>(1, *std::ranges::max_element(bars)));
  const auto at = [&](int exponent) { return (exponent - low) * step; };
  std::string svg =
      fmt::format("<svg width=\"{}\" height=\"22\" role=\"img\" aria-label=\"{}\">", at(high + 1), html(range_text(v)));
  for (int e = low; e <= high; ++e) {
    const std::uint64_t count = bars[static_cast<std::size_t>(e - low)];
    if (count == 0) continue;
    const double height = std::max(1.0, 20 * static_cast<double>(count) / most);
    const bool outside = e < -25 || e > 15;
    svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" fill=\"var(--{})\"/>", at(e),
                       21 - height, step, height, outside ? "bad" : "good");
  }
  for (const int border : {-25, 16})
    svg += fmt::format("<path d=\"M{} 0v22\" stroke=\"var(--soft)\" stroke-dasharray=\"2 2\"/>", at(border));
  return svg + "</svg>";
}

inline std::string values_cell(const value_counts& v) {
  if (v.values == 0) return "<td data-v=\"\"></td>";
  return fmt::format("<td data-v=\"{:.6g}\">{}<span class=\"soft\">{}</span></td>", v.largest,
                     v.counted() == 0 ? "" : exponent_strip(v) + "<br>", range_text(v));
}
/// A table's cell that says which share the format loses: "94% over", "0.5% zero".
inline std::string lost_cell(const value_counts& v, precision p) {
  const std::string low = vanish_text(v, p), high = overflow_text(v, p);
  const std::string text = fmt::format("{}{}{}", low.empty() ? "" : low + " zero",
                                       low.empty() || high.empty() ? "" : "<br>", high.empty() ? "" : high + " over");
  return number_cell(
      static_cast<double>(v.vanish(p) + v.overflow(p)) / static_cast<double>(std::max<std::uint64_t>(1, v.counted())),
      text);
}

/// Returns the table of operators. As in the search's report, rows behind the first 1000 are hidden until the filter
/// finds them, and rows behind 20,000 are left out. Rows with a fault are never hidden.
inline std::string examined_table(const examination& e, const std::vector<fault>& wrong) {
  constexpr std::size_t at_once = 1000, most = 20'000;
  const std::string error = fmt::format("Error in {}", name(e.low));
  std::vector<table_column> columns{{"#", "n"}, {"Operator"}, {"Values"}, {"Gradients"}, {error, "n"}};
  std::vector<std::string> formats;
  for (const precision p : examined_formats) formats.push_back(fmt::format("In {}", name(p)));
  for (const std::string& format : formats) columns.push_back({format, "n"});
  std::string text = operators_begin("name, kind, 20-40", columns);
  const std::size_t n = std::min(e.entries.size(), most);
  for (std::size_t i = 0; i < n; ++i) {
    const examined& each = e.entries[i];
    std::string badges;
    for (const fault& f : wrong) {
      if (f.entry == i) badges += fmt::format(" <span class=\"p f0\">{}</span>", name(f.kind));
    }
    text += fmt::format(
        "<tr id=\"e{0}\"{1}><td class=\"n\">{0}</td><td class=\"t\">{2}{3}<br><span class=\"soft\">{4}</span></td>", i,
        i >= at_once && badges.empty() ? " class=\"far\"" : "", html(each.name), badges, html(each.kind));
    text +=
        values_cell(each.values) + values_cell(each.gradients) + number_cell(each.error, low_error_text(each.error));
    for (const precision p : examined_formats) text += lost_cell(each.values, p);
    text += "</tr>\n";
  }
  text += table_end;
  if (n < e.entries.size()) text += fmt::format("<p class=\"soft\">The first {} of {}.</p>", n, e.entries.size());
  return text;
}

}  // namespace detail

/// Returns the page as one HTML text.
inline std::string html_text(const examination& e) {
  const std::vector<fault> wrong = faults(e);
  const auto operators = std::ranges::count_if(e.entries, &examined::is_operator);
  const std::string title = wrong.empty()       ? fmt::format("Nothing is wrong in {} operators", operators)
                            : wrong.size() == 1 ? "One fault"
                                                : fmt::format("{} faults", wrong.size());
  std::string list;
  for (const fault& f : wrong) {
    list += fmt::format("<li><a href=\"#e{}\">{}</a>{}: {}</li>", f.entry, name(f.kind),
                        f.backward ? " in the backward" : "", detail::html(f.text));
  }
  std::string body = "</header>\n";
  if (!wrong.empty()) body += "<section class=\"warn\"><h2>What is wrong</h2><ul>" + list + "</ul></section>\n";
  body += detail::section(
      "Every operator",
      "In the order of the step, with what each reads for the first time. The bars are shares of values at each power "
      "of two; between the dashed lines FP16 holds them, left of the first one they become 0. In a format: the values "
      "that become 0 and those over its range. A click on a head sorts.",
      detail::examined_table(e, wrong));
  return detail::page(title, body, 0, "CoMP doctor");
}

/// Writes the page to a file. Throws: `file_error` if it cannot be written; an old file is then still there.
inline void write_html(const examination& e, const std::string& path) { detail::write_file(path, html_text(e)); }

}  // namespace comp
