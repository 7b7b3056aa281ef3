// SPDX-License-Identifier: Apache-2.0
// The report's table of operators: the precision of each and the reason for it, its time, and its error in low
// precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/observe/html_costs.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_runs.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace comp::detail {

/// Returns an operator's sizes: "64 x 128 x 256" for a matrix product, "3 to 64 channels", or the shape of its result.
inline std::string shape_text(const op_info& op) {
  if (op.k > 0) return fmt::format("{} x {} x {}", op.m, op.n, op.k);
  if (op.channels_in > 0) return fmt::format("{} to {} channels", op.channels_in, op.channels_out);
  if (op.outputs.empty()) return "";
  return joined(op.outputs.front().shape, " x ");
}

/// Returns an error as a share of the result's norm, "0.4%", or "out of range" if the result leaves the format's range.
inline std::string error_text(double error) {
  return std::isnan(error) ? "" : std::isinf(error) ? "out of range" : fmt::format("{:.2g}%", 100 * error);
}

/// Returns the table. It has at most 20,000 rows, of which the page's script shows the first 1000 and those that match
/// the filter: browsers get slow with more.
inline std::string operator_table(const outcome& result) {
  constexpr std::size_t at_once = 1000;
  const std::size_t n = std::min<std::size_t>(result.graph.size(), 20'000);
  const measured_ops times = measured(result);
  const std::vector<double> errors = sensitivities(result);
  std::vector<table_column> columns{
      {"#", "n"}, {"Operator"}, {"Kind and sizes", "wide"}, {"Policy says", "wide"}, {"Precision"}};
  if (!times.fp32.empty()) columns.insert(columns.end(), {{"In FP32", "n wide"}, {"Found", "n wide"}});
  if (!errors.empty()) columns.push_back({"Low error", "n wide"});
  columns.push_back({"Why"});
  std::string text = operators_begin("name, kind, precision, reason, 20-40", columns);
  for (std::size_t i = 0; i < n; ++i) {
    const op_info& op = result.graph[i];
    const bool known = i < result.reasons.size();
    text += fmt::format(
        "<tr{}><td class=\"n\">{}</td><td class=\"t\">{}</td><td class=\"wide\">{}<br><span class=\"soft\">{}</span></td><td class=\"wide\">{}</td><td>{}</td>",
        i >= at_once ? " class=\"far\"" : "", i, html(op.name), html(op.kind), shape_text(op),
        known ? name(result.reasons[i].category) : "", precision_badge(result.plan[i]));
    if (!times.fp32.empty()) {
      const double fp32 = seconds_of(times.fp32[i]), low = seconds_of(times.chosen[i]);
      text += number_cell(fp32, time_text(fp32), "n wide") + number_cell(low, time_text(low), "n wide");
    }
    if (!errors.empty()) text += number_cell(errors[i], error_text(errors[i]), "n wide");
    text += fmt::format("<td class=\"m\">{}</td></tr>\n", known ? html(result.reasons[i].text) : "");
  }
  text += table_end;
  if (n < result.graph.size())
    text += fmt::format("<p class=\"soft\">The first {} of {} operators.</p>", n, result.graph.size());
  return text;
}

}  // namespace comp::detail
