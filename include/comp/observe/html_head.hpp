// SPDX-License-Identifier: Apache-2.0
// The head of the report, which says what was found and how much faster it is, and the section on what the search cost.
#pragma once

#include <cmath>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_template.hpp>
#include <comp/observe/loss_change.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <string>
#include <string_view>

namespace comp::detail {

/// True if the found plan is FP32's. That is not always all FP32: if all FP32 needs too much memory, the most
/// conservative plan that fits takes its place.
inline bool fp32_won(const outcome& result) {
  return result.plan == (result.contest.empty() ? plan{result.plan.size()} : result.contest.front().plan);
}

/// Returns the speed of the found plan over FP32.
inline paired_speedup speedup_of(const outcome& result) { return {result.speedup, result.speedup_bounds}; }

/// Returns the page's title. It names the gain over the best rule-based plan first, since that is what a user would
/// have without a search, and then the gain over FP32.
inline std::string headline(const outcome& result) {
  const contestant *winner = winner_of(result), *rules = rule_based_of(result);
  const bool fp32 = fp32_won(result), beside_rules = winner != nullptr && rules != nullptr && winner != rules;
  const paired_speedup gain = beside_rules ? over(*winner, *rules, result) : paired_speedup{};
  const auto times = [](double ratio) { return fmt::format("{:.2f} times as fast as ", ratio); };
  if (fp32) {
    const bool slower = beside_rules && gain.ratio > 1 && !gain.within_noise();
    return "FP32 is the fastest plan here that keeps the loss" +
           (slower ? ", " + times(gain.ratio) + "the best rule-based plan" : "");
  }
  const std::string over_fp32 =
      speedup_of(result).within_noise() ? "as fast as FP32 within noise" : times(result.speedup) + "FP32";
  if (beside_rules)
    return (gain.within_noise() ? "As fast as the best rule-based plan within noise, "
                                : times(gain.ratio) + "the best rule-based plan, ") +
           over_fp32;
  if (rules != nullptr && winner == rules) return "The rule-based plan is the fastest here: " + over_fp32;
  return speedup_of(result).within_noise() ? "As fast as FP32 within noise" : over_fp32;
}

/// Returns "1.07 times as fast as the best rule-based plan (95%: 1.02 to 1.10)"; empty if there is no rule-based plan.
inline std::string against_rules(const outcome& result) {
  const contestant *winner = winner_of(result), *rules = rule_based_of(result);
  if (winner == nullptr || rules == nullptr) return {};
  if (winner == rules) return "the same as the rule-based plan";
  return faster_text(over(*winner, *rules, result), "the best rule-based plan") +
         (rejected(*rules) ? ", whose loss was not accepted," : "");
}

/// Returns the first sentences of the page. If FP32 won, they say why the best rule-based plan did not: it was
/// rejected, was not judged, or was not faster.
inline std::string lead(const outcome& result) {
  std::string text = fmt::format("<p class=\"lead\">The found plan: {}.", html(name(result.plan, result.graph)));
  if (!fp32_won(result)) {
    const std::string rules = against_rules(result), fp32 = faster_text(speedup_of(result), "FP32");
    text += fmt::format(" It is {}{}, ", rules.empty() ? "" : rules + " and ", fp32);
    text += result.cost(stage::losses).runs > 0 ? fmt::format("its loss within {:g}%.", 100 * result.tolerance)
                                                : "its loss not looked at.";
  } else if (const contestant* rules = rule_based_of(result)) {
    text += fmt::format(" The best rule-based plan, {}, ran at {} FP32's speed{}.", html(rules->label),
                        ratio_text(rules->over_fp32.ratio),
                        rejected(*rules)                    ? ", but its loss was not accepted"
                        : rules->over_fp32.clearly_faster() ? ", but its loss was not judged"
                        : rules->over_fp32.within_noise()   ? ": no faster beyond noise"
                                                            : "");
  }
  return text + "</p>\n";
}

inline std::string tile(std::string_view figure, std::string_view what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", figure, what);
}

/// Returns the tile with the found plan's loss or, if only a plan that lowers more was judged, with that plan's loss.
/// Empty for FP32 and if no loss was judged.
inline std::string loss_tile(const outcome& result) {
  const contestant* winner = winner_of(result);
  if (winner == nullptr || fp32_won(result)) return {};
  const auto limit = fmt::format("limit {:+g}%", (result.higher_is_better ? -100 : 100) * result.tolerance);
  if (const auto change = change_of(*winner, result)) {
    const std::string radius = std::isfinite(change->radius) ? fmt::format("+- {:.2f}%, ", 100 * change->radius) : "";
    return tile(percent_text(change->difference),
                fmt::format("loss against FP32's: {}mean of {} batches; {}", radius, change->batches, limit));
  }
  const trial* more = covering_run(result.plan, result);
  const auto change = more != nullptr ? change_of(more->sample, result.baseline) : std::nullopt;
  if (!change) return {};
  return tile(
      percent_text(change->difference),
      fmt::format("loss against FP32's of a plan that lowers more: mean of {} batches; {}", change->batches, limit));
}

/// Returns the row of figures below the title, those against the rule-based plan first, as in the title.
inline std::string tiles(const outcome& result) {
  const contestant *winner = winner_of(result), *rules = rule_based_of(result);
  std::string text = "<div class=\"tiles\">";
  if (winner != nullptr && rules != nullptr) {
    const auto ratio = over(*winner, *rules, result);
    text +=
        tile(ratio_text(ratio.ratio), fmt::format("against the rule-based plan, 95%: {}{}", bounds_text(ratio.bounds),
                                                  winner != rules && ratio.within_noise() ? ": a tie" : ""));
  }
  text += tile(ratio_text(result.speedup), "against FP32, 95%: " + bounds_text(result.speedup_bounds));
  text += loss_tile(result);
  if (const auto peak = winner != nullptr ? peak_of(*winner, result) : 0; peak > 0) {
    const auto base = static_cast<double>(peak_of(*fp32_of(result), result));
    std::string about = "peak memory";
    if (base > 0) about += fmt::format(", {:.0f}% of FP32's", 100 * static_cast<double>(peak) / base);
    if (result.memory_limit > 0) about += fmt::format("; limit {}", bytes_text(result.memory_limit));
    text += tile(bytes_text(peak), about);
  }
  const double share = result.overhead_share();
  text += std::isfinite(share)
              ? tile(share_text(share), fmt::format("of a 100-epoch training is what the search cost: {}",
                                                    time_text(result.overhead_seconds())))
              : tile(time_text(result.overhead_seconds()), "is what the search cost; " + overhead_text(result));
  return text + "</div>\n";
}

/// Returns the table of the search's cost. What the search cost is not its whole time: batches that count as training
/// would have been trained without a search as well.
inline std::string costs(const outcome& result) {
  constexpr std::size_t stages = 4;  // the last stage, training, does not belong to the search
  const double all = search_seconds(result);
  std::string bar = "<div class=\"stack\" aria-hidden=\"true\">", rows;
  for (std::size_t i = 0; i < stages; ++i) {
    const stage_cost& cost = result.costs[i];
    if (all > 0 && cost.seconds > 0)
      bar += fmt::format("<i class=\"s{}\" style=\"width:{:.3f}%\"></i>", i, 100 * cost.seconds / all);
    rows += fmt::format(
        "<tr><td><span class=\"key s{}\"></span>{}</td><td class=\"n wide\">{}</td><td class=\"n wide\">{}</td><td class=\"n\">{}</td></tr>\n",
        i, cost_in_words(static_cast<stage>(i)), cost.runs, cost.batches, time_text(cost.seconds));
  }
  const auto sum = [](std::string_view what, const std::string& batches, const std::string& time) {
    return fmt::format(
        "<tr><td>{}</td><td class=\"wide\"></td><td class=\"n wide\">{}</td><td class=\"n\">{}</td></tr>\n", what,
        batches, time);
  };
  return bar + "</div>\n" +
         table_begin("Costs", "", {{"Stage"}, {"Runs", "n wide"}, {"Batches", "n wide"}, {"Time", "n"}}) + rows +
         sum("Whole search", "", time_text(all)) +
         sum("Kept as training, at the found plan's speed", fmt::format("{}", result.trained_batches),
             time_text(kept_seconds(result))) +
         sum("<b>What the search cost</b>", "",
             fmt::format("<b>{}</b>, {}", time_text(result.overhead_seconds()), overhead_text(result))) +
         std::string{table_end};
}

}  // namespace comp::detail
