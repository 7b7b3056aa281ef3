// SPDX-License-Identifier: Apache-2.0
// Defines what report.hpp declares: the plan's file, the text, and the report's page.
#pragma once

#include <algorithm>
#include <comp/core/linkage.hpp>
#include <comp/core/precision.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_text.hpp>
#include <comp/files/training_file.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/report.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace comp {

inline json summary(const outcome& result, const report_info& info);  // summary.hpp, which includes this file

COMP_INLINE void save(const outcome& result, const std::string& path) {
  plan_listing listing = detail::listing_of(result.plan, result.graph, result.hardware);
  listing.speedup = result.speedup;
  listing.speedup_bounds = result.speedup_bounds;
  listing.searched = result.precisions;
  listing.execution = result.execution;
  listing.later = result.later;
  detail::write_file(path, detail::plan_text(listing));
}

namespace detail {

COMP_INLINE std::string aligned(const text_rows& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

/// Returns the sentences that belong to the table of the contest: ties, the front, what plans were judged and timed by.
inline std::string contest_notes(const outcome& result) {
  std::string text;
  for (const contestant& c : result.contest) {
    if (!tie_of(c, result).empty()) text += fmt::format("{} is as fast as {} within noise.\n", c.label, c.tie);
  }
  text += front_text(result);
  if (result.criterion != criterion::batch_losses)
    text += fmt::format("Plans were judged by {}.\n", name(result.criterion));
  if (is_modelled(result.hardware))
    text += fmt::format("Times are {}; none was measured on one.\n", result.hardware.name);
  if (result.compiled) text += "Plans were timed by compiled steps.\n";
  if (result.memory_limit > 0) text += fmt::format("The limit of memory is {}.\n", bytes_text(result.memory_limit));
  return text;
}

/// Returns `text`, in which FP32 stands for what plans are compared with, as it is to read for a model in FP64.
inline std::string with_reference(std::string text, const op_graph& graph) {
  if (widest_written(graph) == precision::fp32) return text;
  for (auto at = text.find("FP32"); at != std::string::npos; at = text.find("FP32", at + 4))
    text.replace(at, 4, "FP64");
  return text;
}

/// Returns the table of the contest, of which the first row is the head; a star marks the found plan.
inline text_rows contest_rows(const outcome& result) {
  text_rows rows{{"", "per batch", "per epoch", "vs FP32", "95%", std::string{loss_title(result)}, "peak memory"}};
  for (const contestant& c : result.contest) {
    const std::vector<double> times = batch_times(c, result);
    const bool timed = !times.empty();
    const std::int64_t peak = peak_of(c, result);
    const bool too_much = result.memory_limit > 0 && peak > result.memory_limit;
    rows.push_back({(&c == winner_of(result) ? "* " : "  ") + c.label,
                    c.status != status::ok ? std::string{name(c.status)}
                    : timed                ? time_text(median(times))
                                           : "not run",
                    time_text(epoch_seconds(c, result)), ratio_text(c.over_fp32.ratio),
                    timed || std::isfinite(c.over_fp32.bounds.low) ? bounds_text(c.over_fp32.bounds) : "-",
                    loss_cell(c, result), bytes_text(peak) + (too_much ? " (too much)" : "")});
  }
  return rows;
}

/// Returns the table of what the search cost, by stages, and what of it counts as training. What is measured before the
/// first batch, such as the tuning of FP32, counts as FP32's.
inline text_rows cost_rows(const outcome& result) {
  text_rows rows{{"", "time", "runs", "batches"}};
  for (const stage s : {stage::baseline, stage::losses, stage::times, stage::contest}) {
    const stage_cost& cost = result.cost(s);
    rows.push_back({fmt::format("  {}", s == stage::baseline ? "Preparation, FP32" : in_words(s)),
                    time_text(cost.seconds), fmt::format("{}", cost.runs), fmt::format("{}", cost.batches)});
  }
  rows.push_back({"  whole search", time_text(search_seconds(result))});
  rows.push_back(
      {"  kept as training", time_text(kept_seconds(result)), "", fmt::format("{}", result.trained_batches)});
  rows.push_back({"  cost of the search", time_text(result.overhead_seconds())});
  return rows;
}

/// The page with its style and its script. Marks such as "<!--title-->" stand for what page() puts in.
inline constexpr std::string_view report_page =
#include <comp/observe/report_page.inc>
    ;

/// Escapes a text for HTML.
inline std::string html(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < ' ';
    safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : control ? " " : std::string(1, c);
  }
  return safe;
}

/// Returns JSON that cannot end the script element it stands in.
inline std::string json_in_script(std::string_view json) {
  std::string safe;
  for (const char c : json) c == '<' ? safe += "\\u003c" : safe += c;
  return safe;
}

// What is put in has no "<" of the texts from outside, so none of these is taken for a mark, or for markup.
COMP_INLINE std::string page(std::string_view title, const std::vector<std::pair<std::string, text_rows>>& tables,
                             std::string_view json, int reload) {
  std::string body, text{report_page};
  for (const auto& [above, rows] : tables) {
    body += "<p>" + html(above) + "</p>\n<div class=\"scroll\"><table>";
    for (const auto& row : rows) {
      body += "<tr>";
      for (const std::string& cell : row)
        body += fmt::format("<{0}>{1}</{0}>", &row == &rows[0] ? "th" : "td", html(cell));
      body += "</tr>\n";
    }
    body += "</table></div>\n";
  }
  const auto put = [&](std::string_view mark, const std::string& part) {
    for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark)) text.replace(at, mark.size(), part);
  };
  put("<!--title-->", html(title));
  put("<!--tables-->", body);
  put("<!--json-->", json_in_script(json));
  put("<!--reload-->", reload > 0 ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">", reload) : "");
  return text;
}

}  // namespace detail

COMP_INLINE std::string table(const outcome& result) {
  const std::string damage =
      result.damaged_since
          ? fmt::format("A plan damaged the training: its weights are of no use since batch {}, counted from 0.\n",
                        *result.damaged_since)
          : std::string{};
  std::string text = damage + detail::aligned(detail::contest_rows(result)) + detail::contest_notes(result) + "\n" +
                     detail::aligned(detail::cost_rows(result));
  text.insert(text.size() - 1, fmt::format(" ({})", detail::overhead_text(result)));
  if (result.recalled > 0) {
    text += fmt::format("{} of {} runs came from the ledger, with the times that they took.\n", result.recalled,
                        result.trials.size());
  }
  return detail::with_reference(std::move(text), result.graph);
}

COMP_INLINE std::string html_text(const outcome& result, const report_info& info) {
  const json all = summary(result, info);
  const std::string found =
      fmt::format("The found plan (*): {}. {}", all["plan_name"].get<std::string>(), detail::contest_notes(result));
  return detail::with_reference(
      detail::page(all["title"].get<std::string>(),
                   {{found, detail::contest_rows(result)},
                    {fmt::format("The cost: {}.", detail::overhead_text(result)), detail::cost_rows(result)}},
                   json_text(all)),
      result.graph);
}

COMP_INLINE std::string html_text_so_far(const outcome& so_far, const report_info& info, int reload) {
  json all = summary(so_far, info);
  all["title"] = fmt::format("Searching: {} run{} so far", so_far.trials.size(), so_far.trials.size() == 1 ? "" : "s");
  all["so_far"] = fmt::format(
      "As of {}; this page reloads itself every {} s until the search is done. Where the time stands still, the search "
      "was ended: with its ledger it goes on from there.",
      local_time(), reload);
  return detail::page(all["title"].get<std::string>(), {{all["so_far"].get<std::string>(), {}}}, json_text(all),
                      reload);
}

COMP_INLINE void write_html(const outcome& result, const std::string& path, const report_info& info) {
  detail::write_file(path, html_text(result, info));
}

// The training replaces the one of the last epoch. If the report is of another plan, or the user has put another file
// there, the file stays as it is.
COMP_INLINE void add_training(const std::string& path, const training_progress& now) {
  constexpr std::string_view begin = "<script type=\"application/json\" id=\"data\">", end = "</script>";
  if (now.plans.empty() || now.so_far.epochs.empty()) return;
  std::string page = detail::read_file(path, std::size_t{1} << 30);
  const auto from = page.find(begin), to = page.find(end, from);
  if (from == std::string::npos || to == std::string::npos) return;
  json all = json::parse(page.substr(from + begin.size(), to - from - begin.size()), nullptr, false);
  if (!all.is_object() || all.value("plan", json()) != now.plans.front().str()) return;
  all["training"] = json_of(now.so_far);
  page.replace(from + begin.size(), to - from - begin.size(), detail::json_in_script(json_text(all)));
  detail::write_file(path, page);
}

}  // namespace comp

#include <comp/observe/summary.hpp>
