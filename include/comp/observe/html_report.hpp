// SPDX-License-Identifier: Apache-2.0
// One self-contained HTML file about a search: what was found and how much it gives, the plan over the operators, the
// contest, every candidate, why each operator has its precision, and where the search's time went. Opens from disk in
// any browser, light or dark, on a phone, on paper, by keyboard; whatever comes from outside is escaped.
// Not here: the machine-readable figures (observe/summary.hpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <comp/files/file.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_about.hpp>
#include <comp/observe/html_costs.hpp>
#include <comp/observe/html_curves.hpp>
#include <comp/observe/html_head.hpp>
#include <comp/observe/html_operators.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_runs.hpp>
#include <comp/observe/html_scatter.hpp>
#include <comp/observe/html_template.hpp>
#include <comp/observe/report_info.hpp>
#include <comp/search/observers.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace comp {

namespace detail {

template <std::same_as<outcome> Outcome>
std::string warnings(const Outcome& found) {
  if (found.warnings.empty()) return {};
  std::string text = "<section class=\"warn\"><h2>To be known</h2><ul>";
  for (const auto& warning : found.warnings) text += "<li>" + html(warning) + "</li>";
  return text + "</ul></section>\n";
}

inline std::string section(std::string_view title, std::string_view about, std::string_view body) {
  return fmt::format("<section><h2>{}</h2>\n<p class=\"soft\">{}</p>\n{}</section>\n", title, about, body);
}

/// The page around its sections. `reload`: seconds after which a browser reads it again; 0: never.
inline std::string page(std::string_view title, const std::string& body, int reload = 0) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,"
      "initial-scale=1\">{}\n<title>{}</title>\n<style>{}</style><script>document.documentElement.className='js'</script></head><body><main>\n"
      "<header><p class=\"eyebrow\">CoMP precision search</p><h1>{}</h1>\n{}</main><div id=\"tip\" role=\"tooltip\" hidden></div><script>{}</script></body></html>\n",
      reload > 0 ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">", reload) : "", title, html_style, title,
      body, html_script);
}

template <std::same_as<outcome> Outcome>
std::string scatter_section(const Outcome& found) {
  return section(
      "Each candidate: time against loss",
      "Every plan that was judged: its mean loss against FP32's on the same batches. Further left is faster, lower is better. What lies beyond the chart is drawn at its edge.",
      scatter(found));
}

template <std::same_as<outcome> Outcome>
std::string trials_section(const Outcome& found) {
  return section(
      "Every run",
      "Batches of one plan in turns are one line. FP32's batches come in parts, as many as its candidates need.",
      trial_table(found));
}

template <std::same_as<outcome> Outcome>
std::string operators_about(const Outcome& found) {
  std::string text = "Matrix products show m x n x k. A click on a head sorts.";
  if (!measured(found).fp32.empty())
    text += " In FP32, Found: forward and backward in FP32 and in the found precision, profiled.";
  if (!sensitivities(found).empty())
    text += " Low error: how far lowering this operator alone moves what it computes, of its norm.";
  return text;
}

/// A section that is left out where its body is empty.
inline std::string section_of(std::string_view title, std::string_view about, const std::string& body) {
  return body.empty() ? "" : section(title, about, body);
}

}  // namespace detail

/// The report as one HTML text.
template <std::same_as<outcome> Outcome>
std::string html_text(const Outcome& found, const report_info& info = {}) {
  using namespace detail;
  std::string text = about_line(found, info) + lead(found) + "</header>\n" + tiles(found) + warnings(found);
  text += section_of("What next", "What to do with the plan, and what could make it better.", what_next(found, info));
  text += section(
      "The plan",
      found.graph.size() > most_cells
          ? "Each cell is a run of neighbours in execution order, filled by the share of each precision. A click lists its operators below."
          : "One cell per operator in execution order; its letter is its precision in the plan string. Point at a cell, or move with the arrow keys, to read more.",
      precision_legend(found.plan) + plan_strip(found));
  text += section(
      "Head to head",
      "Batches of all contestants in turns, so that drift of the machine hits all alike; medians with 95% intervals. Losses are differences from FP32's on the same batches.",
      contest_table(found));
  text += section_of(
      "Losses of FP32 and of the plan",
      "The same batches from the same state. The second chart has the mean of their differences so far: where it ends is what was judged, and what had to stay within the band.",
      loss_curves(found));
  text += scatter_section(found);
  text += section_of("Time per operator",
                     "From profiles of whole plans, each operator timed alone; a batch's time is from the contest.",
                     op_times(found));
  text += section("Why each operator has its precision", operators_about(found), operator_table(found));
  text += section(
      "Where the search's time went",
      "Batches under FP32 and under accepted plans are training already done; they count with the time that they take under the found plan.",
      costs(found));
  text += trials_section(found);
  text += section("What it holds for", "Model, machine and settings of the search.", settings(found, info));
  return page(headline(found), text);
}

/// The page of a search that still runs: what is known by now. A browser reads it again after `reload` seconds.
template <std::same_as<outcome> Outcome>
std::string html_text_so_far(const Outcome& so_far, const report_info& info = {}, int reload = 5) {
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

/// Throws: `file_error` when the file cannot be written; the old one is then still there.
template <std::same_as<outcome> Outcome>
void write_html(const Outcome& found, const std::string& path, const report_info& info = {}) {
  detail::write_file(path, html_text(found, info));
}

/// An observer: writes the report when the search is done, and before that what is known by then, for who watches.
/// Throws: `file_error` where the file cannot be written when the search starts or is done.
class html_report {
 public:
  explicit html_report(std::string path, report_info info = {}) : path_{std::move(path)}, info_{std::move(info)} {
    if (info_.date.empty()) info_.date = local_time();
  }

  void search_started(const std::same_as<search_info> auto& info) {
    so_far_ = info.so_far;
    if (so_far_ != nullptr) write_so_far(*so_far_);
  }
  void trial_done(const std::same_as<trial> auto& t) {
    if (so_far_ == nullptr || t.stage == stage::training || clock::now() < next_) return;
    try {
      write_so_far(*so_far_);
    } catch (const file_error&) {  // who searches for hours is told at the end, not stopped
    }
  }
  void search_done(const std::same_as<outcome> auto& found) {
    so_far_ = nullptr;
    write_html(found, path_, info_);
  }

 private:
  using clock = std::chrono::steady_clock;

  // Every two seconds at most, and seldom enough that it takes no more than a hundredth of the time.
  void write_so_far(const std::same_as<outcome> auto& so_far) {
    const auto begin = clock::now();
    next_ = begin + std::chrono::minutes{1};  // where it fails
    detail::write_file(path_, html_text_so_far(so_far, info_));
    const auto end = clock::now();
    next_ = end + std::max<clock::duration>(std::chrono::seconds{2}, 100 * (end - begin));
  }

  std::string path_;
  report_info info_;
  const outcome* so_far_ = nullptr;
  clock::time_point next_ = {};
};

}  // namespace comp
