// SPDX-License-Identifier: Apache-2.0
// Puts the report's page (html_report.hpp) together from its sections (html_*.hpp).
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/files/file.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_about.hpp>
#include <comp/observe/html_costs.hpp>
#include <comp/observe/html_curves.hpp>
#include <comp/observe/html_head.hpp>
#include <comp/observe/html_operators.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_report.hpp>
#include <comp/observe/html_runs.hpp>
#include <comp/observe/html_scatter.hpp>
#include <comp/observe/html_template.hpp>
#include <comp/observe/report_info.hpp>
#include <functional>
#include <string>
#include <string_view>

namespace comp {

namespace detail {

inline std::string warnings(const outcome& result) {
  if (result.warnings.empty()) return {};
  std::string text = "<section class=\"warn\"><h2>Warnings</h2><ul>";
  for (const auto& warning : result.warnings) text += "<li>" + html(warning) + "</li>";
  return text + "</ul></section>\n";
}

inline std::string scatter_section(const outcome& result) {
  return section(
      "Each candidate: time against loss",
      "Every plan that was judged: its mean loss against FP32's on the same batches. Further left is faster, lower is better. What lies beyond the chart is drawn at its edge.",
      scatter(result));
}

inline std::string trials_section(const outcome& result) {
  return section(
      "Every run",
      "Batches of one plan in turns are one line. FP32's batches come in parts, as many as its candidates need.",
      trial_table(result));
}

/// Returns the HTML comment behind which add_training() puts the epochs. It has a hash of the plan, so that epochs of
/// another plan are not added to this report.
inline std::string training_mark(const plan& p) {
  return fmt::format("<!--training with plan {:016x}-->\n", std::hash<plan>{}(p));
}

/// Returns the table of the epochs after the search, and the fallbacks and warnings below it.
inline std::string training_section(const training_result& so_far) {
  std::string rows = table_begin(
      "Epochs", "",
      {{"Epoch", "n"}, {"Batches", "n wide"}, {"Mean loss", "n"}, {"Time", "n"}, {"Score", "n"}, {"Note"}}, true);
  for (std::size_t e = 0; e < so_far.epochs.size(); ++e) {
    const sample& s = so_far.epochs[e];
    rows += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"n wide\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"e\">{}</td></tr>\n",
        e + 1, s.batches, loss_text(s.loss), time_text(s.seconds), s.score ? fmt::format("{:.4g}", *s.score) : "-",
        html(s.message));
  }
  rows += table_end;
  std::string told;
  for (const training_fallback& f : so_far.fallbacks) {
    told += fmt::format(
        "<li>Epoch {} ended as {}{}{}: it was trained again with {} operators lowered instead of {}.</li>", f.epoch + 1,
        name(f.why), f.message.empty() ? "" : ", ", html(f.message), f.to.count_low(), f.from.count_low());
  }
  for (const later_plan& next : so_far.later) {
    told += fmt::format("<li>From batch {} on {} operators are lowered{}{}.</li>", next.batch, next.plan.count_low(),
                        next.reason.empty() ? "" : ": ", html(next.reason));
  }
  for (const std::string& warning : so_far.warnings) told += "<li>" + html(warning) + "</li>";
  if (!told.empty()) rows += "<ul>" + told + "</ul>\n";
  return section("Training after the search",
                 "Each epoch, those that the search trained among them, and where the plan was given up.", rows);
}

/// Returns the words above the table of operators; they explain only the columns that are there.
inline std::string operators_about(const outcome& result) {
  std::string text = "Matrix products show m x n x k. A click on a head sorts.";
  if (!measured(result).fp32.empty())
    text += " In FP32, Found: forward and backward in FP32 and in the found precision, profiled.";
  if (!sensitivities(result).empty())
    text += " Low error: how far lowering this operator alone moves what it computes, of its norm.";
  return text;
}

}  // namespace detail

// The order of the sections: what was found and what to do with it, the plan, and then the figures behind it, the
// largest tables last.
COMP_INLINE std::string html_text(const outcome& result, const report_info& info) {
  using namespace detail;
  std::string text = about_line(result, info) + lead(result) + "</header>\n" + tiles(result) + warnings(result);
  text += section("What next", "What to do with the plan, and what could make it better.", what_next(result, info));
  text += training_mark(result.plan);
  text += section(
      "The plan",
      result.graph.size() > most_cells
          ? "Each cell is a run of neighbours in execution order, filled by the share of each precision. A click lists its operators below."
          : "One cell per operator in execution order; its letter is its precision in the plan string. Point at a cell, or move with the arrow keys, to read more.",
      precision_legend(result.plan) + plan_strip(result));
  text += section(
      "Head to head",
      "Batches of all contestants in turns, so that drift of the machine hits all alike; medians with 95% intervals. Losses are differences from FP32's on the same batches.",
      contest_table(result));
  text += section(
      "Losses of FP32 and of the plan",
      "The same batches from the same state. The second chart has the mean of their differences so far: where it ends is what was judged, and what had to stay within the band.",
      loss_curves(result));
  text += scatter_section(result);
  text += section("Time per operator",
                  "From profiles of whole plans, each operator timed alone; a batch's time is from the contest.",
                  op_times(result));
  text += section("Casts of the plan",
                  "Where a tensor is read in another precision than it was written in: the least that the plan needs.",
                  cast_table(result));
  text += section("Why each operator has its precision", operators_about(result), operator_table(result));
  text += section(
      "Where the search's time went",
      "Batches under FP32 and under accepted plans are training already done; they count with the time that they take under the found plan.",
      costs(result));
  text += trials_section(result);
  text += section("What it holds for", "Model, machine and settings of the search.", settings(result, info));
  return page(headline(result), text);
}

// Before the search has ended there is no plan to show, only the runs so far and the machine.
COMP_INLINE std::string html_text_so_far(const outcome& so_far, const report_info& info, int reload) {
  using namespace detail;
  const std::string title =
      fmt::format("Searching: {} run{} so far", so_far.trials.size(), so_far.trials.size() == 1 ? "" : "s");
  std::string text =
      about_line(so_far, info) +
      fmt::format(
          "<p class=\"lead\">As of {}; this page reloads itself every {} s until the search is done. Where "
          "the time stands still, the search was ended: with its ledger it goes on from there.</p></header>\n",
          local_time(), reload) +
      warnings(so_far) + scatter_section(so_far) + trials_section(so_far) +
      section("What it holds for", "Model, machine and settings of the search.", settings(so_far, info));
  return page(title, text, reload);
}

// The section replaces the one of the last epoch, which ends at `end`. If the report is of another plan, or the user
// has put another file there, the mark is missing and the file stays as it is.
COMP_INLINE void add_training(const std::string& path, const training_progress& now) {
  constexpr std::string_view end = "<!--end of training-->\n";
  if (now.plans.empty() || now.so_far.epochs.empty()) return;
  std::string page = detail::read_file(path, std::size_t{1} << 30);
  const std::string mark = detail::training_mark(now.plans.front());
  const auto at = page.find(mark), last = page.find(end);
  if (at == std::string::npos) return;
  const auto from = at + mark.size(), to = last == std::string::npos ? from : last + end.size();
  page.replace(from, to - from, detail::training_section(now.so_far).append(end));
  detail::write_file(path, page);
}

COMP_INLINE void write_html(const outcome& result, const std::string& path, const report_info& info) {
  detail::write_file(path, html_text(result, info));
}

}  // namespace comp
