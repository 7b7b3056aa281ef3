// SPDX-License-Identifier: Apache-2.0
// The result of a search as figures for programs (JSON), and as a short table for people. They are the figures of the
// report, in seconds and bytes. A ratio "a_over_b" is how many times as fast a is as b. Losses are differences from
// FP32's on the same batches, relative to FP32's loss.
#pragma once

#include <cmath>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/report_info.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/search/observers.hpp>
#include <string>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

inline json json_of(const paired_speedup& s) {
  json to;
  to["ratio"] = comp::json_of(s.ratio);
  to["interval_95"] = comp::json_of(s.bounds);
  return to;
}

/// Returns median, 95% interval of the median, least and most of `values`, each times `factor`; null for no values.
inline json spread_json(const std::vector<double>& values, double factor = 1) {
  if (values.empty()) return nullptr;
  const interval bounds = median_interval(values);
  const auto [least, most] = std::ranges::minmax(values);
  json to;
  to["median"] = comp::json_of(factor * median(values));
  to["interval_95"] = comp::json_of(interval{factor * bounds.low, factor * bounds.high});
  to["least"] = comp::json_of(factor * least);
  to["most"] = comp::json_of(factor * most);
  to["count"] = values.size();
  return to;
}

/// Returns a contestant's loss against FP32's; null if it was not judged. "limit" is the line that the difference had
/// to stay under, which is not the tolerance if roundings alone lead FP32's losses apart (loss_test.hpp).
inline json loss_json(const contestant& c, const outcome& result) {
  const auto change = change_of(c, result);
  if (!change) return nullptr;
  json to;
  to["difference"] = comp::json_of(change->difference);
  to["radius"] = std::isfinite(change->radius) ? comp::json_of(change->radius) : json();
  to["batches"] = change->batches;
  to["limit"] = c.loss ? comp::json_of(c.loss->line) : comp::json_of(result.tolerance);
  to["accepted"] = !rejected(c);
  return to;
}

/// Returns the figures of a contestant. What was not measured is null and not 0, so that a program cannot take it for a
/// measurement.
inline json contestant_json(const contestant& c, const outcome& result) {
  json to;
  to["label"] = c.label;
  to["plan"] = c.plan.str();
  to["status"] = name(c.status);
  const std::vector<double> times = batch_times(c, result);
  to["seconds_per_batch"] = spread_json(times);
  to["seconds_per_epoch"] =
      result.batches_per_epoch > 0 ? spread_json(times, static_cast<double>(result.batches_per_epoch)) : json();
  to["peak_bytes"] = peak_of(c, result) > 0 ? json(peak_of(c, result)) : json();
  to["over_fp32"] = json_of(c.over_fp32);
  to["raced"] = raced(c, result);
  to["as_fast_as"] = tie_of(c, result).empty() ? json() : json(c.tie);
  to["on_front"] = is_on_front(c, result);
  to["loss_against_fp32"] = loss_json(c, result);
  to["measured_epoch_seconds"] = c.epoch ? comp::json_of(c.epoch->seconds) : json();
  to["epoch_loss"] = c.epoch ? comp::json_of(c.epoch->loss) : json();
  to["validation_score"] = c.epoch && c.epoch->score ? comp::json_of(*c.epoch->score) : json();
  return to;
}

/// Returns what the search cost. "seconds" is without the batches that count as training, "search_seconds" with them.
inline json overhead_json(const outcome& result) {
  json to;
  to["seconds"] = result.overhead_seconds();
  to["share_of_100_epochs"] = comp::json_of(result.overhead_share());
  to["search_seconds"] = search_seconds(result);
  to["kept_batches"] = result.trained_batches;
  to["kept_seconds"] = kept_seconds(result);
  for (const stage s : {stage::baseline, stage::losses, stage::times, stage::contest}) {
    json& of = to["stages"][std::string{name(s)}];
    of["seconds"] = result.cost(s).seconds;
    of["runs"] = result.cost(s).runs;
    of["batches"] = result.cost(s).batches;
  }
  return to;
}

}  // namespace detail

/// Returns all figures of a search. "comp" is the label of the found plan, "rule_based" that of the fastest rule-based
/// one, each null if there is none. "of" holds `info`.
inline json summary(const outcome& result, const report_info& info = {}) {
  json to;
  to["comp_summary"] = 1;
  to["comp_version"] = detail::comp_version;
  to["of"] = {{"model", info.model}, {"data", info.data}, {"command", info.command}, {"date", info.date}};
  to["plan"] = result.plan.str();
  to["plan_name"] = name(result.plan, result.graph);
  to["operators"] = result.graph.size();
  to["fingerprint"] = fmt::format("{:016x}", result.graph.fingerprint());
  to["hardware"] = json_of(result.hardware);
  to["judged_by"] = name(result.criterion);
  to["tolerance"] = result.tolerance;
  to["batches_per_epoch"] = result.batches_per_epoch > 0 ? json(result.batches_per_epoch) : json();
  to["runs"] = result.trials.size();
  to["runs_from_ledger"] = result.recalled;
  to["memory_limit"] = result.memory_limit > 0 ? json(result.memory_limit) : json();
  to["damaged_since"] = result.damaged_since ? json(*result.damaged_since) : json();
  to["warnings"] = result.warnings;
  json& contest = to["contest"] = json::array();
  for (const contestant& c : result.contest) contest.push_back(detail::contestant_json(c, result));
  const contestant *winner = detail::winner_of(result), *fp32 = detail::fp32_of(result),
                   *rules = detail::rule_based_of(result);
  for (const auto& [role, c] : {std::pair{"comp", winner}, {"fp32", fp32}, {"rule_based", rules}}) {
    to[role] = c != nullptr ? json(c->label) : json();
  }
  json& ratios = to["ratios"];
  ratios["comp_over_fp32"] = winner != nullptr ? detail::json_of(winner->over_fp32) : json();
  ratios["comp_over_rule_based"] =
      winner != nullptr && rules != nullptr ? detail::json_of(detail::over(*winner, *rules, result)) : json();
  ratios["rule_based_over_fp32"] = rules != nullptr ? detail::json_of(rules->over_fp32) : json();
  to["overhead"] = detail::overhead_json(result);
  return to;
}

/// Writes the figures to a file. Throws: `file_error` if it cannot be written; an old file is then still there.
inline void write_summary(const outcome& result, const std::string& path, const report_info& info = {}) {
  detail::write_file(path, summary(result, info).dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

namespace detail {

/// Returns a table as text, with columns as wide as their longest cell; the first is aligned left, the others right.
inline std::string aligned(const std::vector<std::vector<std::string>>& rows) {
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

/// Returns the table of the contest as text; a star marks the found plan.
inline std::string contest_text(const outcome& result) {
  const bool epochs = std::any_of(result.contest.begin(), result.contest.end(),
                                  [](const contestant& c) { return c.epoch.has_value(); });
  std::vector<std::vector<std::string>> rows{
      {"", "per batch", "per epoch", "vs FP32", "95%", std::string{loss_title(result)}}};
  if (epochs) rows.front().insert(rows.front().end(), {"epoch loss", "score"});
  rows.front().emplace_back("peak memory");
  for (const contestant& c : result.contest) {
    const std::vector<double> times = batch_times(c, result);
    const bool timed = !times.empty();
    auto& row = rows.emplace_back();
    row = {(&c == winner_of(result) ? "* " : "  ") + c.label,
           c.status != status::ok ? std::string{name(c.status)}
           : timed                ? time_text(median(times))
                                  : "not run",
           time_text(epoch_seconds(c, result)),
           ratio_text(c.over_fp32.ratio),
           timed || std::isfinite(c.over_fp32.bounds.low) ? bounds_text(c.over_fp32.bounds) : "-",
           loss_cell(c, result)};
    if (epochs) {
      row.push_back(c.epoch ? loss_text(c.epoch->loss) : "-");
      row.push_back(c.epoch && c.epoch->score ? fmt::format("{:.4g}", *c.epoch->score) : "-");
    }
    row.push_back(bytes_text(peak_of(c, result)) + (above_limit(c, result) ? " (too much)" : ""));
  }
  return aligned(rows) + contest_notes(result);
}

/// Returns the table of what the search cost, by stages, and what of it counts as training.
inline std::string costs_text(const outcome& result) {
  std::vector<std::vector<std::string>> rows{{"", "time", "runs", "batches"}};
  for (const stage s : {stage::baseline, stage::losses, stage::times, stage::contest}) {
    const stage_cost& cost = result.cost(s);
    rows.push_back({fmt::format("  {}", cost_in_words(s)), time_text(cost.seconds), fmt::format("{}", cost.runs),
                    fmt::format("{}", cost.batches)});
  }
  rows.push_back({"  whole search", time_text(search_seconds(result))});
  rows.push_back(
      {"  kept as training", time_text(kept_seconds(result)), "", fmt::format("{}", result.trained_batches)});
  rows.push_back({"  cost of the search", time_text(result.overhead_seconds())});
  std::string text = aligned(rows);
  text.insert(text.size() - 1, fmt::format(" ({})", overhead_text(result)));
  if (result.recalled > 0) {
    text += fmt::format("{} of {} runs came from the ledger, with the times that they took.\n", result.recalled,
                        result.trials.size());
  }
  return text;
}

}  // namespace detail

/// Returns the contest and the search's cost as a text; `*` marks the found plan. The cost is the search's time less
/// the time that the batches which it trained, and which count as training, take under the found plan. If a plan
/// damaged the training's weights, the first line says so.
inline std::string table(const outcome& result) {
  const std::string spoilt =
      result.damaged_since
          ? fmt::format("A plan spoilt the training: its weights are of no use since batch {}, counted from 0.\n",
                        *result.damaged_since)
          : std::string{};
  return spoilt + detail::contest_text(result) + "\n" + detail::costs_text(result);
}

}  // namespace comp
