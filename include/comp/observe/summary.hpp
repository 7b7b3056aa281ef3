// SPDX-License-Identifier: Apache-2.0
// What a search found, as figures for programs (JSON) and as a short table for people. The same figures as in the
// report; seconds, bytes, and ratios that say how many times as fast the first is as the second.
#pragma once

#include <array>
#include <comp/observe/figures.hpp>
#include <comp/observe/file.hpp>
#include <comp/observe/json.hpp>
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

/// Median, 95% interval of the median, least and most; null where nothing was timed.
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

inline json contestant_json(const contestant& c, const outcome& found) {
  json to;
  to["label"] = c.label;
  to["plan"] = c.plan.str();
  to["status"] = name(c.status);
  to["seconds_per_batch"] = spread_json(c.seconds);
  to["seconds_per_epoch"] = spread_json(c.seconds, static_cast<double>(found.baseline.batches));
  to["peak_bytes"] = c.peak_bytes > 0 ? json(c.peak_bytes) : json();
  to["over_fp32"] = json_of(c.over_fp32);
  to["measured_epoch_seconds"] = c.epoch ? comp::json_of(c.epoch->seconds) : json();
  to["loss"] = c.epoch ? comp::json_of(c.epoch->loss) : json();
  to["validation_score"] = c.epoch && c.epoch->score ? comp::json_of(*c.epoch->score) : json();
  return to;
}

inline json overhead_json(const outcome& found) {
  json to;
  const double all = found.overhead_seconds(), share = found.overhead_share();
  to["seconds"] = all;
  to["share_of_100_epochs"] = comp::json_of(share);
  for (const stage s : {stage::baseline, stage::epochs, stage::batches, stage::contest}) {
    json& of = to["stages"][std::string{name(s)}];
    of["seconds"] = found.cost(s).seconds;
    of["runs"] = found.cost(s).runs;
    of["batches"] = found.cost(s).batches;
    of["share_of_100_epochs"] = all > 0 ? comp::json_of(share * found.cost(s).seconds / all) : json(0.0);
  }
  return to;
}

}  // namespace detail

/// Every figure of a search. "comp" is the found plan, "rule_based" the fastest rule-based one; null where there is
/// none.
inline json summary(const outcome& found) {
  json to;
  to["comp_summary"] = 1;
  to["plan"] = found.plan.str();
  to["operators"] = found.graph.size();
  to["fingerprint"] = fmt::format("{:016x}", found.graph.fingerprint());
  to["hardware"] = json_of(found.hardware);
  to["tolerance"] = found.tolerance;
  to["batches_per_epoch"] = found.baseline.batches;
  to["warnings"] = found.warnings;
  json& contest = to["contest"] = json::array();
  for (const contestant& c : found.contest) contest.push_back(detail::contestant_json(c, found));
  const contestant *winner = detail::winner_of(found), *fp32 = detail::fp32_of(found),
                   *rules = detail::rule_based_of(found);
  for (const auto& [role, c] : {std::pair{"comp", winner}, {"fp32", fp32}, {"rule_based", rules}}) {
    to[role] = c != nullptr ? json(c->label) : json();
  }
  json& ratios = to["ratios"];
  ratios["comp_over_fp32"] = winner != nullptr ? detail::json_of(winner->over_fp32) : json();
  ratios["comp_over_rule_based"] =
      winner != nullptr && rules != nullptr ? detail::json_of(detail::over(*winner, *rules)) : json();
  ratios["rule_based_over_fp32"] = rules != nullptr ? detail::json_of(rules->over_fp32) : json();
  to["overhead"] = detail::overhead_json(found);
  return to;
}

/// Throws: `file_error` when the file cannot be written; the old one is then still there.
inline void write_summary(const outcome& found, const std::string& path) {
  detail::write_file(path, summary(found).dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

namespace detail {

/// Columns as wide as their longest cell, the first flush left, the others right.
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

}  // namespace detail

/// The contest and the overhead as a text table; `*` marks the found plan.
inline std::string table(const outcome& found) {
  std::vector<std::vector<std::string>> rows{
      {"", "per batch", "per epoch", "vs FP32", "95%", "loss", "score", "peak memory"}};
  for (const contestant& c : found.contest) {
    const bool ran = c.status == status::ok && !c.seconds.empty();
    rows.push_back({(&c == detail::winner_of(found) ? "* " : "  ") + c.label,
                    ran ? detail::time_text(median(c.seconds)) : std::string{name(c.status)},
                    detail::time_text(detail::epoch_seconds(c, found)), detail::ratio_text(c.over_fp32.ratio),
                    detail::bounds_text(c.over_fp32.bounds), c.epoch ? detail::loss_text(c.epoch->loss) : "-",
                    c.epoch && c.epoch->score ? fmt::format("{:.4g}", *c.epoch->score) : "-",
                    detail::bytes_text(c.peak_bytes)});
  }
  std::vector<std::vector<std::string>> costs{{"", "time", "runs", "of 100 epochs"}};
  const double all = found.overhead_seconds();
  const std::pair<stage, const char*> stages[] = {{stage::baseline, "  FP32 baseline"},
                                                  {stage::epochs, "  stage 1, epochs"},
                                                  {stage::batches, "  stage 2, batches"},
                                                  {stage::contest, "  contest"}};
  for (const auto& [s, words] : stages) {
    const stage_cost& cost = found.cost(s);
    costs.push_back({words, detail::time_text(cost.seconds), fmt::format("{}", cost.runs),
                     detail::share_text(all > 0 ? found.overhead_share() * cost.seconds / all : 0)});
  }
  costs.push_back({"  whole search", detail::time_text(all), "", detail::share_text(found.overhead_share())});
  return detail::aligned(rows) + "\n" + detail::aligned(costs);
}

}  // namespace comp
