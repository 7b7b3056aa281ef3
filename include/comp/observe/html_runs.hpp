// SPDX-License-Identifier: Apache-2.0
// The report's tables of what was run: the contest, and all trials.
// Not here: the chart of time against loss (html_scatter.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_template.hpp>
#include <comp/observe/loss_change.hpp>
#include <comp/search/outcome.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace comp::detail {

/// Draws a bar up to the median and the 95% interval around it, on a scale from 0 to `most`.
inline std::string range_bar(double middle, interval bounds, double most) {
  if (!std::isfinite(middle) || !(most > 0)) return "";
  const auto percent = [most](double value) { return std::clamp(100 * value / most, 0.0, 100.0); };
  std::string text = "<div class=\"range\" aria-hidden=\"true\">";
  if (std::isfinite(bounds.low) && std::isfinite(bounds.high)) {
    text += fmt::format("<i style=\"left:{:.2f}%;width:{:.2f}%\"></i>", percent(bounds.low),
                        percent(bounds.high) - percent(bounds.low));
  }
  return text + fmt::format("<b style=\"width:{:.2f}%\"></b></div>", percent(middle));
}

/// Returns a contestant's row. All rows draw their bars on the same scale up to `most`, so that bars can be compared.
inline std::string contest_row(const contestant& c, const outcome& result, double most, bool epochs) {
  const std::vector<double> times = batch_times(c, result);
  const double middle = median(times);
  const auto cell = [](std::string_view label, const std::string& text) {
    return fmt::format("<td class=\"n\" data-l=\"{}\">{}</td>", label, text);
  };
  std::string row = fmt::format(
      "<tr{}><td class=\"t plan\">{}{}{}</td><td class=\"n\" data-l=\"Per batch\">{}{}</td><td class=\"n\" data-l=\"Against FP32\"><b>{}</b><br>"
      "<span class=\"soft\">{}</span></td>",
      &c == winner_of(result) ? " class=\"win\"" : "", html(c.label),
      tie_of(c, result).empty()
          ? ""
          : fmt::format("<br><span class=\"soft\">as fast as {} within noise</span>", html(c.tie)),
      small_plan(c.plan, result.graph, c.label),
      c.status != status::ok ? std::string{name(c.status)}
      : times.empty()        ? "not run"
                             : time_text(middle),
      range_bar(middle, median_interval(times), most), ratio_text(c.over_fp32.ratio),
      times.empty() ? "" : bounds_text(c.over_fp32.bounds));
  const std::string loss = loss_cell(c, result);
  const auto of = loss.find("% of ") < loss.size() ? loss.find(" of ") : loss.size();
  row += cell("Peak memory", bytes_text(peak_of(c, result)) +
                                 (above_limit(c, result) ? "<br><span class=\"soft\">too much</span>" : "")) +
         cell("Loss", fmt::format("{}<br><span class=\"soft\">{}</span>", loss.substr(0, of), loss.substr(of)));
  if (epochs) {
    row += cell("Epoch loss", c.epoch ? loss_text(c.epoch->loss) : "not run");
    row += cell("Score", c.epoch && c.epoch->score ? fmt::format("{:.4g}", *c.epoch->score) : "-");
  }
  return row + "</tr>\n";
}

/// Returns the table of the contest. The columns of whole epochs are there only if some contestant trained one.
inline std::string contest_table(const outcome& result) {
  double most = 0;
  bool epochs = false;
  for (const contestant& c : result.contest) {
    const std::vector<double> times = batch_times(c, result);
    const double high = median_interval(times).high, middle = median(times);
    for (const double value : {high, middle}) most = std::isfinite(value) ? std::max(most, value) : most;
    epochs = epochs || c.epoch;
  }
  std::vector<table_column> columns{
      {"Contestant and its plan"},
      {"Per batch, from 0, with 95% interval", "n"},
      {"Against FP32", "n"},
      {"Peak memory", "n"},
      {result.criterion == criterion::scores ? "Below FP32's score" : "Loss against FP32's", "n"}};
  if (epochs) columns.insert(columns.end(), {{"Epoch loss", "n"}, {"Score", "n"}});
  std::string text = table_begin("Contest", " class=\"cards\"", columns);
  for (const contestant& c : result.contest) text += contest_row(c, result, most * 1.04, epochs);  // 1.04: a margin
  text += table_end;
  if (const std::string front = front_text(result); !front.empty())
    text += fmt::format("<p class=\"soft\">{}</p>\n", html(front));
  return text;
}

/// Returns the table of all runs. Runs that were only timed show no loss (is_timed()), and FP32 no difference from
/// itself, except with perturbed roundings: that difference is how far roundings alone lead losses apart.
inline std::string trial_table(const outcome& result) {
  std::string text = table_begin("Runs", " class=\"sorts\"",
                                 {{"#", "n"},
                                  {"Stage", "wide"},
                                  {"Plan"},
                                  {"Runs", "n wide"},
                                  {"Batches", "n wide"},
                                  {"Per batch", "n"},
                                  {"Loss", "n wide"},
                                  {"Against FP32's", "n"},
                                  {"Ended"}},
                                 true);
  for (const trial_group& g : grouped_trials(result)) {
    const trial& t = *g.shown;
    const bool fp32 = t.stage == stage::baseline && t.purpose == purpose::judge;
    const auto change = is_timed(t.stage) || fp32 ? std::nullopt : change_of(t.sample, result.baseline);
    std::int64_t batches = 0;
    for (const trial* run : g.runs) batches += run->sample.batches;
    const bool timed_only = is_timed(t.stage) || batches == 0;
    text += fmt::format("<tr><td class=\"n\">{}</td><td class=\"wide\">{}{}</td><td class=\"plan\">{}</td>", t.number,
                        in_words(t.stage),
                        t.label.empty() ? "" : fmt::format("<br><span class=\"soft\">{}</span>", html(t.label)),
                        small_plan(t.plan, result.graph, t.label));
    text += fmt::format("<td class=\"n wide\">{}</td><td class=\"n wide\">{}</td>", g.runs.size(), batches);
    text += number_cell(g.seconds(), time_text(g.seconds()));
    text +=
        number_cell(timed_only ? std::nan("") : t.sample.loss, timed_only ? "" : loss_text(t.sample.loss), "n wide");
    text += number_cell(change.value_or(loss_change{std::nan("")}).difference,
                        change ? percent_text(change->difference) : "");
    text += fmt::format("<td class=\"e\">{}{}</td></tr>\n", fate_text(t, result),
                        t.sample.ok() || t.sample.message.empty() ? "" : ": " + html(t.sample.message));
  }
  return text.append(table_end);
}

}  // namespace comp::detail
