// SPDX-License-Identifier: Apache-2.0
// The found plan in the report: a strip of one cell per operator, and the table that says why each has its precision.
#pragma once

#include <algorithm>
#include <array>
#include <comp/observe/figures.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <string>
#include <string_view>

namespace comp::detail {

/// Text from anywhere, made harmless in HTML text and in quoted attributes.
inline std::string html(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return safe;
}

/// "<b class=...>bf16</b>" in the colour of the precision.
inline std::string precision_badge(precision p) {
  return fmt::format("<span class=\"p f{}\">{}</span>", letter(p), name(p));
}

/// One line per precision that occurs in `plans`.
inline std::string precision_legend(const plan& p) {
  std::string text = "<div class=\"legend\">";
  for (const precision each : all_precisions) {
    const auto count = std::count(p.begin(), p.end(), each);
    if (count > 0)
      text += fmt::format("<span>{} {} operator{}</span>", precision_badge(each), count, count == 1 ? "" : "s");
  }
  return text + "</div>\n";
}

/// A whole plan in little: at most 120 columns, each in the colour of its lowest precision.
inline std::string small_plan(const plan& p) {
  if (p.size() <= 16) return fmt::format("<code>{}</code>", p.str());
  constexpr std::array colours{"#c4ccd5", "#009e73", "#0072b2", "#e69f00", "#cc79a7", "#d55e00"};
  const std::size_t columns = std::min<std::size_t>(p.size(), 120);
  const auto at = [&](std::size_t column) {
    return *std::max_element(p.begin() + static_cast<std::ptrdiff_t>(column * p.size() / columns),
                             p.begin() + static_cast<std::ptrdiff_t>((column + 1) * p.size() / columns));
  };
  std::string text =
      fmt::format("<svg viewBox=\"0 0 {} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">", columns,
                  counts_text(p));
  for (std::size_t first = 0, next; first < columns; first = next) {
    for (next = first + 1; next < columns && at(next) == at(first);) ++next;
    text += fmt::format("<path fill=\"{}\" d=\"M{} 0h{}v10h-{}z\"/>", colours[static_cast<std::size_t>(at(first))],
                        first, next - first, next - first);
  }
  return text + fmt::format("</svg><small>{} of {} lowered</small>", p.count_low(), p.size());
}

/// Where an operator belongs: its outermost scope, or its name up to the first dot.
inline std::string_view place_of(const op_info& op) {
  if (!op.scopes.empty()) return op.scopes.front();
  return std::string_view{op.name}.substr(0, std::min(op.name.find('.'), op.name.size()));
}

/// Operators [first, last) that one cell stands for: one, or for large graphs a run of neighbours of the same place and
/// precision.
template <std::same_as<outcome> Outcome>
std::size_t cell_end(const Outcome& found, std::size_t first, bool merge) {
  std::size_t last = first + 1;
  while (merge && last < found.graph.size() && found.plan[last] == found.plan[first] &&
         place_of(found.graph[last]) == place_of(found.graph[first])) {
    ++last;
  }
  return last;
}

template <std::same_as<outcome> Outcome>
std::string cell(const Outcome& found, std::size_t first, std::size_t last) {
  const op_info& op = found.graph[first];
  const precision p = found.plan[first];
  std::string tip = last == first + 1 ? fmt::format("{} {} ({}): {}", first, op.name, op.kind, name(p))
                                      : fmt::format("{} to {}, from {} to {}: {}", first, last - 1, op.name,
                                                    found.graph[last - 1].name, name(p));
  if (last == first + 1 && first < found.reasons.size()) tip += ". " + found.reasons[first].text;
  return fmt::format("<span class=\"c f{0}\" role=\"img\" tabindex=\"{1}\" data-tip aria-label=\"{2}\">{0}</span>",
                     letter(p), first == 0 ? 0 : -1, html(tip));
}

/// The strip: cells under the label of their scope; with labels only where they group anything.
template <std::same_as<outcome> Outcome>
std::string plan_strip(const Outcome& found) {
  const std::size_t n = found.graph.size();
  std::size_t places = 0;
  for (std::size_t i = 0; i < n; ++i) places += i == 0 || place_of(found.graph[i]) != place_of(found.graph[i - 1]);
  const bool labels = places > 1 && places * 2 <= n;
  std::string text = fmt::format("<div class=\"{}\"><div class=\"strip\">", n <= 80    ? "big"
                                                                            : n <= 400 ? "mid"
                                                                                       : "small");
  const std::size_t width = n <= 80 ? 28 : n <= 400 ? 18 : 9;
  for (std::size_t first = 0, next; first < n; first = next) {
    std::string cells;
    std::size_t count = 0;
    next = first;
    do {
      const std::size_t last = cell_end(found, next, n > 4000);
      cells += cell(found, next, last);
      next = last;
      ++count;
    } while (next < n && (!labels || place_of(found.graph[next]) == place_of(found.graph[first])));
    const std::string place = html(place_of(found.graph[first]));
    text += "<div class=\"scope\">";
    if (labels)
      text += fmt::format("<em style=\"--w:{}px\" title=\"{}\">{}</em>", std::max<std::size_t>(count * width, 24),
                          place, place);
    text += "<div class=\"cells\">" + cells + "</div></div>\n";
  }
  return text + "</div></div>\n";
}

inline std::string shape_text(const op_info& op) {
  if (op.k > 0) return fmt::format("{} x {} x {}", op.m, op.n, op.k);
  if (op.channels_in > 0) return fmt::format("{} to {} channels", op.channels_in, op.channels_out);
  if (op.outputs.empty()) return "";
  std::string text;
  for (const auto extent : op.outputs.front().shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", extent);
  return text;
}

/// The table of operators: at most 4,000 rows.
template <std::same_as<outcome> Outcome>
std::string operator_table(const Outcome& found) {
  const std::size_t n = std::min<std::size_t>(found.graph.size(), 4000);
  std::string text =
      "<input type=\"search\" id=\"find\" placeholder=\"Filter: name, kind, precision, reason\" aria-label=\"Filter the "
      "operators\"> <span class=\"soft\" id=\"found\" role=\"status\"></span>\n<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Operators\">"
      "<table id=\"ops\"><thead><tr><th class=\"n\">#</th><th>Operator</th><th>Kind</th><th>Sizes</th><th>Policy says</th>"
      "<th>Precision</th><th>Why</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < n; ++i) {
    const op_info& op = found.graph[i];
    const bool known = i < found.reasons.size();
    text += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"t\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"m\">{}</td></tr>\n",
        i, html(op.name), html(op.kind), shape_text(op), known ? name(found.reasons[i].category) : "",
        precision_badge(found.plan[i]), known ? html(found.reasons[i].text) : "");
  }
  text += "</tbody></table></div>\n";
  if (n < found.graph.size())
    text += fmt::format("<p class=\"soft\">The first {} of {} operators.</p>", n, found.graph.size());
  return text;
}

}  // namespace comp::detail
