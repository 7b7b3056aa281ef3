// SPDX-License-Identifier: Apache-2.0
// The report's figures for single operators, from the profiles (seconds) and sensitivities (errors in a low precision)
// that a search asked its backend for, and the casts of the found plan.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/autocast/casts.hpp>
#include <comp/core/concepts.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_template.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

/// The seconds of each operator in FP32 and in its found precision, from profiles of whole plans. Both are empty if an
/// operator was not profiled in its found precision.
struct measured_ops {
  std::vector<op_time> fp32 = {}, chosen = {};
};

/// Returns the measured times. An operator's time in its found precision is taken from the first profile in which it
/// has that precision, since a search profiles FP32 and the low plans but seldom the found plan.
inline measured_ops measured(const outcome& result) {
  const std::size_t n = result.graph.size();
  const plan base = result.contest.empty() ? plan{n} : result.contest.front().plan;
  measured_ops m;
  std::vector<bool> known(n);
  for (const bool first : {true, false}) {  // FP32's own profile is taken before those of mixed plans
    for (const trial& t : result.trials) {
      if (t.purpose != purpose::profile || t.sample.curve.size() != 2 * n || t.plan.size() != n) continue;
      if ((t.plan == base) != first || !t.sample.ok()) continue;
      if (first) m.fp32.resize(n);
      m.chosen.resize(n);
      for (std::size_t i = 0; i < n; ++i) {
        const op_time time{t.sample.curve[2 * i], t.sample.curve[2 * i + 1]};
        if (first) m.fp32[i] = time;
        if (!known[i] && t.plan[i] == result.plan[i]) m.chosen[i] = time, known[i] = true;
      }
    }
  }
  if (m.fp32.empty() || !std::all_of(known.begin(), known.end(), [](bool each) { return each; })) return {};
  return m;
}

/// Returns the error of each operator (op_error) in its found precision or, if it stays in FP32, in the low precision
/// that was asked about first. NaN for an operator without a low precision; empty if the search asked for no errors.
inline std::vector<double> sensitivities(const outcome& result) {
  const std::size_t n = result.graph.size();
  std::vector<double> each;
  for (const trial& t : result.trials) {
    if (t.purpose != purpose::sensitivity || t.sample.curve.size() != n || !t.sample.ok()) continue;
    each.resize(n, std::nan(""));
    const std::size_t index = t.repeat;
    for (std::size_t i = 0; i < n; ++i) {
      const bool own = index < all_precisions.size() && result.plan[i] == all_precisions[index];
      if (own || std::isnan(each[i])) each[i] = t.sample.curve[i];
    }
  }
  return each;
}

inline double seconds_of(const op_time& t) { return t.forward + t.backward; }

/// Draws a bar of parts, each in seconds, on a scale from 0 to `most`.
inline std::string part_bar(std::initializer_list<double> parts, double most) {
  std::string bar = "<div class=\"stack\" aria-hidden=\"true\">";
  int key = 1;
  for (const double part : parts) {
    if (part > 0 && most > 0)
      bar += fmt::format("<i class=\"s{}\" style=\"width:{:.2f}%\"></i>", key, 100 * part / most);
    ++key;
  }
  return bar + "</div>";
}

/// Returns the table of a batch's time in FP32 and under the found plan, and of the operators that take most of it;
/// empty without profiles.
inline std::string op_times(const outcome& result) {
  const measured_ops m = measured(result);
  if (m.fp32.empty()) return "";
  constexpr std::size_t most_rows = 10;
  const auto sum = [](const std::vector<op_time>& times, double op_time::*part) {
    return std::accumulate(times.begin(), times.end(), 0.0, [&](double s, const op_time& t) { return s + t.*part; });
  };
  // `batch` is the time of the whole batch [s]; NaN if the row is a single operator, or the batch was not timed.
  const auto row = [](const std::string& name, std::string_view what, const op_time& t, double batch, double most) {
    const double ops = seconds_of(t), rest = batch - ops;
    return fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"n wide\">{}</td><td class=\"n wide\">{}</td><td class=\"n wide\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
        name, what, time_text(t.forward), time_text(t.backward), rest >= 0 ? time_text(rest) : "",
        time_text(std::isfinite(batch) ? batch : ops), part_bar({t.forward, t.backward, rest}, most));
  };
  const op_time fp32{sum(m.fp32, &op_time::forward), sum(m.fp32, &op_time::backward)},
      low{sum(m.chosen, &op_time::forward), sum(m.chosen, &op_time::backward)};
  const auto batch = [&](const contestant* c) { return c != nullptr ? median(batch_times(*c, result)) : std::nan(""); };
  const double batch_fp32 = batch(fp32_of(result)), batch_low = batch(winner_of(result)), alone = std::nan("");
  const double whole = std::fmax(std::fmax(batch_fp32, batch_low), std::max(seconds_of(fp32), seconds_of(low)));
  std::string text =
      "<div class=\"legend\"><span><i class=\"key s1\"></i>forward</span><span><i class=\"key s2\"></i>backward</span>"
      "<span><i class=\"key s3\"></i>rest of the batch: casts, optimiser, data</span></div>\n" +
      table_begin("Time per operator", " class=\"times\"",
                  {{"Operator"},
                   {"Precision"},
                   {"Forward", "n wide"},
                   {"Backward", "n wide"},
                   {"Rest", "n wide"},
                   {"Time", "n"},
                   {"from 0"}}) +
      row("Whole batch", "FP32", fp32, batch_fp32, whole) + row("Whole batch", "found plan", low, batch_low, whole);
  std::vector<std::size_t> order(m.fp32.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto slower = [&](std::size_t a, std::size_t b) { return seconds_of(m.fp32[a]) > seconds_of(m.fp32[b]); };
  const auto shown = order.begin() + static_cast<std::ptrdiff_t>(std::min(most_rows, order.size()));
  std::partial_sort(order.begin(), shown, order.end(), slower);
  const double most = order.empty() ? 0 : std::max(seconds_of(m.fp32[order[0]]), seconds_of(m.chosen[order[0]]));
  for (auto at = order.begin(); at != shown; ++at) {
    const std::string name = html(result.graph[*at].name);
    text += row(name, precision_badge(precision::fp32), m.fp32[*at], alone, most);
    if (is_low(result.plan[*at])) text += row(name, precision_badge(result.plan[*at]), m.chosen[*at], alone, most);
  }
  text += table_end;
  if (seconds_of(fp32) > batch_fp32 || seconds_of(low) > batch_low)
    text +=
        "<p class=\"soft\">Timed alone, the operators take longer than the whole batch: the machine was busy, or they overlap in it.</p>\n";
  if (order.size() > most_rows) {
    text += fmt::format("<p class=\"soft\">The {} operators that take longest; the table of operators has all.</p>\n",
                        most_rows);
  }
  return text;
}

/// Returns the table of the casts that a batch under the found plan needs, the largest first. Empty if it needs none,
/// and for a plan that the backend's own autocast runs, since only that knows its casts.
inline std::string cast_table(const outcome& result) {
  constexpr std::size_t most_rows = 10;
  if (result.plan.count_low() == 0 || result.plan.runs_autocast()) return "";
  const autocast::cast_list all = autocast::casts(result.graph, result.plan);
  std::vector<autocast::cast> casts = all.forward;
  if (casts.empty()) return "";
  std::sort(casts.begin(), casts.end(), [](const autocast::cast& a, const autocast::cast& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : std::pair{a.op, a.input} < std::pair{b.op, b.input};
  });
  std::string text =
      fmt::format("<p>{} in the forward pass and {} in the backward pass; together they read and write {}.</p>\n",
                  all.forward.size(), all.backward.size(),
                  all.bytes() > 0 ? bytes_text(all.bytes()) : "an unknown size") +
      table_begin("Casts", "", {{"Where"}, {"From"}, {"To"}, {"Moves", "n"}, {"Readers", "n wide"}});
  for (std::size_t i = 0; i < std::min(most_rows, casts.size()); ++i) {
    const autocast::cast& c = casts[i];
    text += fmt::format(
        "<tr><td class=\"t\">{} {}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n wide\">{}</td></tr>\n",
        !c.input           ? "after"
        : c.differentiable ? "a parameter, before"
                           : "data, before",
        html(result.graph[c.op].name), precision_badge(c.from), precision_badge(c.to), bytes_text(c.bytes),
        c.readers.size());
  }
  text += table_end;
  if (casts.size() > most_rows) text += fmt::format("<p class=\"soft\">The {} largest.</p>\n", most_rows);
  return text;
}

}  // namespace comp::detail
