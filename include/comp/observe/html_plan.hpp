// SPDX-License-Identifier: Apache-2.0
// Draws plans in the report: the found plan as a strip with a cell for each operator, and others as small pictures.
// Not here: the table of operators (html_operators.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <comp/observe/figures.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace comp::detail {

/// Escapes a text for HTML, in text and in quoted attributes. Every text that comes from outside (names of operators,
/// labels, messages) goes through it, so that none can bring markup or a script into the page.
inline std::string html(std::string_view text) {
  constexpr std::pair<char, std::string_view> escapes[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    const auto* escape =
        std::find_if(std::begin(escapes), std::end(escapes), [c](const auto& e) { return e.first == c; });
    if (escape != std::end(escapes)) {
      safe += escape->second;
    } else {
      safe += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return safe;
}

/// Returns a precision's name on its colour.
inline std::string precision_badge(precision p) {
  return fmt::format("<span class=\"p f{}\">{}</span>", letter(p), name(p));
}

/// Returns a legend with each precision that occurs in the plan and its number of operators.
inline std::string precision_legend(const plan& p) {
  std::string text = "<div class=\"legend\">";
  for (const precision each : all_precisions) {
    const auto count = std::count(p.begin(), p.end(), each);
    if (count > 0)
      text += fmt::format("<span>{} {} operator{}</span>", precision_badge(each), count, count == 1 ? "" : "s");
  }
  return text + "</div>\n";
}

/// How many of the operators [first, last) have each precision; the index is the precision.
using precision_counts = std::array<std::size_t, all_precisions.size()>;
inline precision_counts counts_of(const plan& p, std::size_t first, std::size_t last) {
  precision_counts counts{};
  for (std::size_t i = first; i < last; ++i) ++counts[static_cast<std::size_t>(p[i])];
  return counts;
}

/// Draws a whole plan as a small picture, with its name below unless `told` has it already. Up to 120 operators have a
/// column each; above that a column stands for several neighbours and shows the share of each precision.
inline std::string small_plan(const plan& p, const op_graph& graph, std::string_view told = {}) {
  const std::string named = html(name(p, graph));
  constexpr std::array colours{"#c4ccd5", "#009e73", "#0072b2", "#e69f00", "#cc79a7",
                               "#d55e00", "#f0e442", "#56b4e9", "#882255", "#44aa99"};
  static_assert(colours.size() == all_precisions.size());
  const std::size_t columns = p.size() <= 120 ? p.size() : 60;
  const auto at = [&](std::size_t column) {
    return counts_of(p, column * p.size() / columns, (column + 1) * p.size() / columns);
  };
  std::string text = fmt::format(
      "<svg viewBox=\"0 0 {} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">", columns, named);
  for (std::size_t first = 0, next; first < columns; first = next) {
    const precision_counts counts = at(first);
    // Equal columns are drawn as one rectangle, which keeps pages with hundreds of plans small. Columns do not have
    // exactly as many operators each, so counts that differ by one are taken as equal.
    const auto same = [&](const precision_counts& other) {
      for (std::size_t k = 0; k < counts.size(); ++k) {
        if ((counts[k] == 0) != (other[k] == 0) || std::max(counts[k], other[k]) > std::min(counts[k], other[k]) + 1)
          return false;
      }
      return true;
    };
    for (next = first + 1; next < columns && same(at(next));) ++next;
    double all = 0, top = 0;
    for (const std::size_t count : counts) all += static_cast<double>(count);
    for (std::size_t k = 0; k < counts.size(); ++k) {
      const double high = 10 * static_cast<double>(counts[k]) / all;
      if (counts[k] > 0)
        text += fmt::format("<path fill=\"{}\" d=\"M{} {:.4g}h{}v{:.4g}h-{}z\"/>", colours[k], first, top, next - first,
                            high, next - first);
      top += high;
    }
  }
  return text + "</svg>" + (html(told).find(named) == std::string::npos ? "<small>" + named + "</small>" : "");
}

/// Returns the part of the model that an operator belongs to: its outermost scope, or its name up to the first dot.
inline std::string_view place_of(const op_info& op) {
  if (!op.scopes.empty()) return op.scopes.front();
  return std::string_view{op.name}.substr(0, std::min(op.name.find('.'), op.name.size()));
}

/// Above this many operators a cell of the strip stands for several neighbours and shows the share of each precision.
inline constexpr std::size_t most_cells = 2000;

/// Returns the operator behind the cell that begins with operator `first`. In a large graph a cell has at most one
/// 300th of the operators. With `by_place` a cell does not reach beyond its part of the model.
inline std::size_t cell_end(const outcome& result, std::size_t first, bool by_place) {
  const std::size_t n = result.graph.size(), most = n > most_cells ? first + (n + 299) / 300 : first + 1;
  std::size_t last = first + 1;
  while (last < std::min(n, most) && (!by_place || place_of(result.graph[last]) == place_of(result.graph[first])))
    ++last;
  return last;
}

/// Returns a text such as "4 bf16, 2 fp32".
inline std::string shares_text(const precision_counts& counts) {
  std::string text;
  for (const precision p : all_precisions) {
    if (const auto count = counts[static_cast<std::size_t>(p)]; count > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name(p));
  }
  return text;
}

/// Returns a background of the precisions' colours, from below upwards, each as high as its share.
inline std::string shares_fill(const precision_counts& counts, std::size_t all) {
  std::string stops;
  double from = 0;
  for (const precision p : all_precisions) {
    const double to = from + 100 * static_cast<double>(counts[static_cast<std::size_t>(p)]) / static_cast<double>(all);
    if (to > from) stops += fmt::format(",var(--p{0}) {1:.3g}%,var(--p{0}) {2:.3g}%", letter(p), from, to);
    from = to;
  }
  return "linear-gradient(0deg" + stops + ")";
}

/// Draws the cell of the operators [first, last). Only the first cell can be reached by the tab key; arrow keys lead to
/// the others, so that nobody has to tab through a thousand cells.
inline std::string cell(const outcome& result, std::size_t first, std::size_t last) {
  const int focus = first == 0 ? 0 : -1;
  if (last > first + 1) {
    const precision_counts counts = counts_of(result.plan, first, last);
    return fmt::format(
        "<span class=\"c part\" role=\"button\" tabindex=\"{}\" data-tip data-rows=\"{}-{}\" style=\"background:{}\" aria-label=\"{} to {}, from {} to {}: {}\"></span>",
        focus, first, last - 1, shares_fill(counts, last - first), first, last - 1, html(result.graph[first].name),
        html(result.graph[last - 1].name), shares_text(counts));
  }
  const op_info& op = result.graph[first];
  const precision p = result.plan[first];
  std::string tip = fmt::format("{} {} ({}): {}", first, op.name, op.kind, name(p));
  if (first < result.reasons.size()) tip += ". " + result.reasons[first].text;
  return fmt::format("<span class=\"c f{0}\" role=\"img\" tabindex=\"{1}\" data-tip aria-label=\"{2}\">{0}</span>",
                     letter(p), focus, html(tip));
}

/// Draws the strip of cells, each under the label of its part of the model. There are no labels if hardly any cells
/// would share one.
inline std::string plan_strip(const outcome& result) {
  const std::size_t n = result.graph.size();
  std::size_t places = 0;
  for (std::size_t i = 0; i < n; ++i) places += i == 0 || place_of(result.graph[i]) != place_of(result.graph[i - 1]);
  const bool by_place = n <= most_cells || places <= 600, labels = places > 1 && places * 2 <= n && places <= 600;
  std::string text = fmt::format("<div class=\"{}\"><div class=\"strip\">", n <= 80    ? "big"
                                                                            : n <= 400 ? "mid"
                                                                                       : "small");
  const std::size_t width = n <= 80 ? 28 : n <= 400 ? 18 : 9;
  for (std::size_t first = 0, next; first < n; first = next) {
    std::string cells;
    std::size_t count = 0;
    next = first;
    do {
      const std::size_t last = cell_end(result, next, by_place);
      cells += cell(result, next, last);
      next = last;
      ++count;
    } while (next < n && (!labels || place_of(result.graph[next]) == place_of(result.graph[first])));
    const std::string place = html(place_of(result.graph[first]));
    text += "<div class=\"scope\">";
    if (labels)
      text += fmt::format("<em style=\"--w:{}px\" title=\"{}\">{}</em>", std::max<std::size_t>(count * width, 24),
                          place, place);
    text += "<div class=\"cells\">" + cells + "</div></div>\n";
  }
  return text + "</div></div>\n";
}

}  // namespace comp::detail
