// SPDX-License-Identifier: Apache-2.0
// The result of a search as figures for programs (JSON), in seconds and bytes: all that the report draws. A ratio
// "a_over_b" is how many times as fast a is as b. Losses are differences from FP32's on the same batches, relative to
// FP32's loss. What was not measured is null and not 0, so that a program cannot take it for a measurement.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/autocast/casts.hpp>
#include <comp/core/concepts.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/report.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/search/losses/loss_test.hpp>
#include <comp/search/observers.hpp>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

inline json speedup_json(const paired_speedup& s) {
  return {{"ratio", json_of(s.ratio)}, {"interval_95", json_of(s.bounds)}};
}

inline json change_json(const std::optional<loss_change>& change) {
  if (!change) return nullptr;
  return {{"difference", json_of(change->difference)},
          {"radius", std::isfinite(change->radius) ? json_of(change->radius) : json()},
          {"batches", change->batches}};
}

/// Returns median, 95% interval of the median, least and most of `values`, each times `factor`; null for no values.
inline json spread_json(const std::vector<double>& values, double factor = 1) {
  if (values.empty()) return nullptr;
  const interval bounds = median_interval(values);
  const auto [least, most] = std::ranges::minmax(values);
  return {{"median", json_of(factor * median(values))},
          {"interval_95", json_of(interval{factor * bounds.low, factor * bounds.high})},
          {"least", json_of(factor * least)},
          {"most", json_of(factor * most)},
          {"count", values.size()}};
}

/// Returns: a contestant's loss against FP32's; null if it was not judged. "limit" is the line that the difference had
/// to stay under, which is not the tolerance if roundings alone lead FP32's losses apart (loss_test.hpp).
inline json loss_json(const contestant& c, const outcome& result) {
  json to = change_json(change_of(c, result));
  if (to.is_null()) return to;
  to["limit"] = c.loss ? json_of(c.loss->line) : json_of(result.tolerance);
  to["accepted"] = !is_rejected(c);
  to["undecided"] = is_undecided(c, result);
  return to;
}

/// Returns the bytes of a contestant by kind. "rest": of the peak, what the training does not hold from step to step.
inline json bytes_json(const contestant& c, const outcome& result) {
  const std::optional<held_bytes> held = held_of(c, result);
  if (!held) return json();
  json to = json_of(*held);
  const std::int64_t lasting = held->weights + held->copies + held->moments, peak = peak_of(c, result);
  to["rest"] = peak > lasting ? json(peak - lasting) : json();
  to["saved_state"] = held->weights + held->moments;
  return to;
}

/// Returns the figures of a contestant.
inline json contestant_json(const contestant& c, const outcome& result) {
  json to;
  to["label"] = c.label;
  to["plan"] = c.plan.str();
  to["plan_name"] = name(c.plan, result.graph);
  to["rule_based"] = c.rule_based;
  to["status"] = name(c.status);
  const std::vector<double> times = batch_times(c, result);
  to["seconds_per_batch"] = spread_json(times);
  to["seconds_per_epoch"] =
      result.batches_per_epoch > 0 ? spread_json(times, static_cast<double>(result.batches_per_epoch)) : json();
  to["peak_bytes"] = peak_of(c, result) > 0 ? json(peak_of(c, result)) : json();
  to["bytes"] = bytes_json(c, result);
  to["over_fp32"] = speedup_json(c.over_fp32);
  to["raced"] = raced(c, result);
  to["as_fast_as"] = tie_of(c, result).empty() ? json() : json(c.tie);
  to["on_front"] = std::ranges::any_of(result.front(), [&](std::size_t i) { return &result.contest[i] == &c; });
  to["loss_against_fp32"] = loss_json(c, result);
  return to;
}

/// Returns what the search cost. "seconds" is without the batches that count as training, "search_seconds" with them.
inline json overhead_json(const outcome& result) {
  json to;
  to["seconds"] = result.overhead_seconds();
  to["share_of_100_epochs"] = json_of(result.overhead_share());
  to["search_seconds"] = search_seconds(result);
  to["kept_batches"] = result.trained_batches;
  to["kept_seconds"] = kept_seconds(result);
  for (const stage s : {stage::baseline, stage::losses, stage::times, stage::contest}) {
    const stage_cost& cost = result.cost(s);
    to["stages"][std::string{name(s)}] = {{"seconds", cost.seconds}, {"runs", cost.runs}, {"batches", cost.batches}};
  }
  return to;
}

/// Returns a run, or all batches of one plan that a stage timed in turns. Runs that were only timed have no loss
/// (is_timed()), and FP32 no difference from itself, except where its roundings were perturbed: that difference is
/// how far roundings alone lead losses apart. The plan of a large model has only its name, which keeps the file small.
inline json run_json(const trial_group& group, const outcome& result) {
  constexpr std::size_t large = 2000;
  const trial& t = *group.shown;
  const bool timed_only = is_timed(t.stage), fp32 = t.stage == stage::baseline && t.purpose == purpose::judge;
  std::int64_t batches = 0;
  for (const trial* run : group.runs) batches += run->sample.batches;
  const double seconds = group.seconds();
  json to;
  to["number"] = t.number;
  to["stage"] = name(t.stage);
  to["label"] = t.label;
  to["plan"] = t.plan.size() <= large ? json(t.plan.str()) : json();
  to["plan_name"] = name(t.plan, result.graph);
  to["runs"] = group.runs.size();
  to["batches"] = batches;
  to["seconds_per_batch"] = json_of(std::isfinite(seconds) ? seconds : median(t.sample.batch_seconds));
  to["loss"] = timed_only || batches == 0 ? json() : json_of(t.sample.loss);
  to["loss_against_fp32"] = timed_only || fp32 ? json() : change_json(change_of(t, result));
  to["judged"] = is_judged(t);
  to["ended"] = fate_text(t, result);
  to["message"] = t.sample.message;
  return to;
}

/// Returns what was measured of single operators: profiles of whole plans ("seconds" has forward and backward of each
/// operator in turn), and the error of each operator alone in a low precision (op_error; NaN: it has none).
inline json measurements_json(const outcome& result) {
  const std::size_t n = result.graph.size();
  json to{{"profiles", json::array()}, {"low_errors", json::object()}};
  for (const trial& t : result.trials) {
    if (trains(t.purpose) || !t.sample.ok()) continue;
    const std::size_t low = t.purpose == purpose::sensitivity ? t.repeat : all_precisions.size();
    if (t.purpose == purpose::profile && t.sample.curve.size() == 2 * n && t.plan.size() == n) {
      to["profiles"].push_back({{"plan", t.plan.str()}, {"seconds", json_of(t.sample.curve)}});
    } else if (low < all_precisions.size() && t.sample.curve.size() == n) {
      to["low_errors"][std::string{name(all_precisions[low])}] = json_of(t.sample.curve);
    }
  }
  return to;
}

/// Returns each operator with the reason for its precision; of a larger model the first 20,000, and none before there
/// is a plan. "part" is its outermost scope, or its name up to the first dot.
inline json operators_json(const outcome& result) {
  constexpr std::string_view evidence[] = {"none",    "fixed",     "unsupported", "dropped",
                                           "harmful", "undecided", "unasked",     "accepted"};
  json all = json::array();
  if (result.plan.size() != result.graph.size()) return all;
  for (std::size_t i = 0; i < std::min<std::size_t>(result.graph.size(), 20'000); ++i) {
    const op_info& op = result.graph[i];
    json& to = all.emplace_back();
    to["name"] = op.name;
    to["kind"] = op.kind;
    to["part"] = op.scopes.empty() ? op.name.substr(0, op.name.find('.')) : op.scopes.front();
    to["sizes"] = op.k > 0             ? fmt::format("{} x {} x {}", op.m, op.n, op.k)
                  : op.channels_in > 0 ? fmt::format("{} to {} channels", op.channels_in, op.channels_out)
                  : op.outputs.empty() ? ""
                                       : joined(op.outputs.front().shape, " x ");
    if (i < result.reasons.size()) to["policy"] = name(result.reasons[i].category), to["why"] = result.reasons[i].text;
    if (i < result.evidence.size()) {
      const op_evidence& of_op = result.evidence[i];
      to["evidence"] = evidence[static_cast<std::size_t>(of_op.what)];
      to["saves"] = json_of(of_op.saves - of_op.casts);
    }
  }
  return all;
}

/// Returns the casts that a batch under the found plan needs, the ten largest one by one. Null if it needs none, and
/// for a plan that the backend's own autocast runs, since only that knows its casts.
inline json casts_json(const outcome& result) {
  if (result.plan.count_lowered(result.graph) == 0 || result.plan.runs_autocast()) return nullptr;
  autocast::cast_list all = autocast::casts(result.graph, result.plan);
  if (all.forward.empty()) return nullptr;
  json to;
  to["forward"] = all.forward.size();
  to["backward"] = all.backward.size();
  to["bytes"] = all.bytes();
  std::ranges::sort(all.forward, {}, [](const autocast::cast& c) { return std::tuple{-c.bytes, c.op, c.input, c.to}; });
  for (const autocast::cast& c : std::span{all.forward}.first(std::min<std::size_t>(10, all.forward.size()))) {
    const char* what = !c.input ? "after" : c.differentiable ? "a parameter, before" : "data, before";
    to["largest"].push_back({{"where", fmt::format("{} {}", what, result.graph[c.op].name)},
                             {"from", name(c.from)},
                             {"to", name(c.to)},
                             {"bytes", c.bytes},
                             {"readers", c.readers.size()}});
  }
  return to;
}

/// Returns the losses of FP32 and of the found plan, or of the accepted plan that lowers more, on the same batches, and
/// the mean of their differences so far, which is what was judged; at most 500 of each, evenly spread, with the last
/// batch among them. Null if there are none, or if scores decided instead of losses.
inline json curves_json(const outcome& result) {
  constexpr std::size_t most = 500;
  if (result.criterion == criterion::scores || result.contest.empty()) return nullptr;
  if (result.plan == result.contest.front().plan) return nullptr;
  const trial *own = judged_run(result.plan, result), *t = own != nullptr ? own : covering_run(result.plan, result);
  const std::size_t n = t == nullptr ? 0 : std::min(t->sample.curve.size(), result.baseline.curve.size());
  if (n == 0) return nullptr;
  const std::span base{result.baseline.curve.data(), n};
  const double scale = loss_scale(base);
  double sum = 0;
  json to;
  to["of"] = own != nullptr ? "the found plan" : "a plan that lowers more";
  to["scale"] = json_of(scale);
  std::size_t shown = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += t->sample.curve[i] - base[i];
    if ((shown + 1) * n / std::min(n, most) - 1 > i) continue;
    ++shown;
    to["batches"].push_back(i + 1);
    to["fp32"].push_back(json_of(base[i]));
    to["plan"].push_back(json_of(t->sample.curve[i]));
    to["difference"].push_back(json_of(sum / static_cast<double>(i + 1) / scale));
  }
  return to;
}

/// Returns what was found as a title: "1.61 times as fast as FP32 (95%: 1.59 to 1.64)".
inline std::string title_of(const outcome& result) {
  const std::string reference{reference_name(result.graph)};
  if (result.plan != (result.contest.empty() ? as_written(result.graph) : result.contest.front().plan)) {
    std::string text = faster_text({result.speedup, result.speedup_bounds}, reference);
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    return text;
  }
  const bool open = std::ranges::any_of(result.contest | std::views::drop(1), [](const contestant& c) {
    return !is_rejected(c) && c.over_fp32.within_noise() && c.over_fp32.bounds.high > 1.01;
  });
  return reference +
         (open ? " is kept: noise hides whether a plan is faster" : " is the fastest plan here that keeps the loss");
}

/// Returns the lines that train with the plan, in the language of the user's code.
inline std::string use_code(const report_info& info) {
  const std::string file = json_text(info.plan_file.empty() ? "plan.json" : info.plan_file);
  if (reader_language == language::cpp)
    return fmt::format("trainer.set_precision(comp::load_plan({}, trainer.graph()).plan);", file);
  return fmt::format("found.save({0})\nplan = comp.plan({0}, net)  # in your loop: with plan: loss = ...", file);
}

}  // namespace detail

/// Returns all figures of a search. "comp" is the label of the found plan, "rule_based" that of the fastest rule-based
/// one whose loss was accepted, or of all if none was, each null if there is none. "of" holds `info`.
inline json summary(const outcome& result, const report_info& info = {}) {
  json to;
  to["comp_summary"] = 1;
  to["comp_version"] = detail::comp_version;
  to["of"] = {{"model", info.model},
              {"data", info.data},
              {"command", info.command},
              {"date", info.date},
              {"use_command", info.use_command},
              {"use_code", detail::use_code(info)},
              {"plan_file", info.plan_file}};
  to["title"] = detail::title_of(result);
  to["plan"] = result.plan.str();
  to["plan_name"] = name(result.plan, result.graph);
  to["operators"] = result.graph.size();
  to["fingerprint"] = fmt::format("{:016x}", result.graph.fingerprint());
  to["hardware"] = json_of(result.hardware);
  for (const precision p : all_precisions) to["letters"][std::string{letter(p)}] = name(p);
  to["precisions"] = json_of(result.precisions);
  to["judged_by"] = name(result.criterion);
  to["tolerance"] = result.tolerance;
  to["higher_is_better"] = result.higher_is_better;
  to["compiled"] = result.compiled;
  to["batches_per_epoch"] = result.batches_per_epoch > 0 ? json(result.batches_per_epoch) : json();
  to["runs"] = result.trials.size();
  to["runs_from_ledger"] = result.recalled;
  to["memory_limit"] = result.memory_limit > 0 ? json(result.memory_limit) : json();
  to["damaged_since"] = result.damaged_since ? json(*result.damaged_since) : json();
  to["warnings"] = result.warnings;
  json& contest = to["contest"] = json::array();
  for (const contestant& c : result.contest) contest.push_back(detail::contestant_json(c, result));
  const contestant *winner = detail::winner_of(result),
                   *fp32 = result.contest.empty() ? nullptr : &result.contest.front(),
                   *rules = detail::rule_based_of(result);
  for (const auto& [role, c] : {std::pair{"comp", winner}, {"fp32", fp32}, {"rule_based", rules}}) {
    to[role] = c != nullptr ? json(c->label) : json();
  }
  json& ratios = to["ratios"];
  ratios["comp_over_fp32"] = winner != nullptr ? detail::speedup_json(winner->over_fp32) : json();
  ratios["comp_over_rule_based"] =
      winner != nullptr && rules != nullptr ? detail::speedup_json(detail::over(*winner, *rules, result)) : json();
  ratios["rule_based_over_fp32"] = rules != nullptr ? detail::speedup_json(rules->over_fp32) : json();
  to["overhead"] = detail::overhead_json(result);
  to["trials"] = json::array();
  for (const detail::trial_group& group : detail::grouped_trials(result))
    to["trials"].push_back(detail::run_json(group, result));
  to["operator_list"] = detail::operators_json(result);
  to["measured"] = detail::measurements_json(result);
  to["casts"] = detail::casts_json(result);
  to["curves"] = detail::curves_json(result);
  return to;
}

/// Writes the figures to a file. Throws: `file_error` if it cannot be written; an old file is then still there.
inline void write_summary(const outcome& result, const std::string& path, const report_info& info = {}) {
  detail::write_file(path, summary(result, info).dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace comp
