// SPDX-License-Identifier: Apache-2.0
// One self-contained HTML file about a search: what was found and how much it gives, the plan over the operators, the
// contest, every candidate, why each operator has its precision, and where the search's time went. Opens from disk in
// any browser, light or dark, on a phone, on paper, by keyboard; whatever comes from outside is escaped.
// Not here: the machine-readable figures (observe/summary.hpp).
#pragma once

#include <comp/observe/figures.hpp>
#include <comp/observe/file.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_runs.hpp>
#include <comp/observe/html_scatter.hpp>
#include <comp/observe/html_template.hpp>
#include <comp/search/observers.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace comp {

namespace detail {

template <std::same_as<outcome> Outcome>
bool fp32_won(const Outcome& found) {
  return found.plan == (found.contest.empty() ? plan{found.plan.size()} : found.contest.front().plan);
}

/// The found plan against FP32.
template <std::same_as<outcome> Outcome>
paired_speedup speedup_of(const Outcome& found) {
  return {found.speedup, found.speedup_bounds};
}

template <std::same_as<outcome> Outcome>
std::string headline(const Outcome& found) {
  if (fp32_won(found)) return "FP32 is the fastest plan here that keeps the loss";
  if (within_noise(speedup_of(found))) return "As fast as FP32 within noise";
  return fmt::format("{:.2f} times as fast as FP32{}", found.speedup,
                     found.cost(stage::epochs).runs > 0 ? fmt::format(", its loss within {:g}%", 100 * found.tolerance)
                                                        : ", its loss not looked at");
}

/// "1.07 times as fast as the best rule-based plan (95%: 1.02 to 1.10)"; empty without one.
template <std::same_as<outcome> Outcome>
std::string against_rules(const Outcome& found) {
  const contestant *winner = winner_of(found), *rules = rule_based_of(found);
  if (winner == nullptr || rules == nullptr) return {};
  if (winner == rules) return "the same as the rule-based plan";
  return faster_text(over(*winner, *rules, found), "the best rule-based plan");
}

template <std::same_as<outcome> Outcome>
std::string lead(const Outcome& found) {
  std::string text = fmt::format("<p class=\"lead\">The found plan runs {}.", counts_text(found.plan));
  if (!fp32_won(found)) {
    text += fmt::format(" It is {}", faster_text(speedup_of(found), "FP32"));
    if (const std::string rules = against_rules(found); !rules.empty()) text += " and " + rules;
    text += ".";
  } else if (const contestant* rules = rule_based_of(found)) {
    text += fmt::format(" The best rule-based plan, {}, ran at {} FP32's speed{}.", html(rules->label),
                        ratio_text(rules->over_fp32.ratio),
                        rejected(*rules)                    ? ", but its loss was not accepted"
                        : rules->over_fp32.clearly_faster() ? ", but its loss was not judged"
                        : within_noise(rules->over_fp32)    ? ": no faster beyond noise"
                                                            : "");
  }
  return text + "</p>\n";
}

inline std::string tile(std::string_view figure, std::string_view what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", figure, what);
}

/// The found plan's loss, or that of a plan which lowers more; empty for FP32 and where none was judged.
template <std::same_as<outcome> Outcome>
std::string loss_tile(const Outcome& found) {
  const contestant* winner = winner_of(found);
  if (winner == nullptr || fp32_won(found)) return {};
  const auto limit = fmt::format("limit {:+g}%", (found.higher_is_better ? -100 : 100) * found.tolerance);
  if (const auto change = change_of(*winner, found)) {
    const std::string radius = std::isfinite(change->radius) ? fmt::format("+- {:.2f}%, ", 100 * change->radius) : "";
    return tile(percent_text(change->difference),
                fmt::format("loss against FP32's: {}mean of {} batches; {}", radius, change->batches, limit));
  }
  const trial* more = covering_run(found.plan, found);
  const auto change = more != nullptr ? change_of(more->sample, found.baseline) : std::nullopt;
  if (!change) return {};
  return tile(
      percent_text(change->difference),
      fmt::format("loss against FP32's of a plan that lowers more: mean of {} batches; {}", change->batches, limit));
}

template <std::same_as<outcome> Outcome>
std::string tiles(const Outcome& found) {
  const contestant *winner = winner_of(found), *rules = rule_based_of(found);
  std::string text = "<div class=\"tiles\">" +
                     tile(ratio_text(found.speedup), "against FP32, 95%: " + bounds_text(found.speedup_bounds));
  if (winner != nullptr && rules != nullptr) {
    const auto ratio = over(*winner, *rules, found);
    text +=
        tile(ratio_text(ratio.ratio), fmt::format("against the rule-based plan, 95%: {}{}", bounds_text(ratio.bounds),
                                                  winner != rules && within_noise(ratio) ? ": a tie" : ""));
  }
  text += loss_tile(found);
  if (const auto peak = winner != nullptr ? peak_of(*winner, found) : 0; peak > 0) {
    const auto base = static_cast<double>(peak_of(*fp32_of(found), found));
    std::string about = "peak memory";
    if (base > 0) about += fmt::format(", {:.0f}% of FP32's", 100 * static_cast<double>(peak) / base);
    if (found.memory_limit > 0) about += fmt::format("; limit {}", bytes_text(found.memory_limit));
    text += tile(bytes_text(peak), about);
  }
  const double share = found.overhead_share();
  text +=
      std::isfinite(share)
          ? tile(share_text(share), fmt::format("of a 100-epoch training is what the search cost: {}",
                                                time_text(found.overhead_seconds())))
          : tile(time_text(found.overhead_seconds()), "is what the search cost; how long an epoch is, is not known");
  return text + "</div>\n";
}

template <std::same_as<outcome> Outcome>
std::string costs(const Outcome& found) {
  constexpr std::size_t stages = 4;  // training is none of the search's
  const double all = search_seconds(found);
  std::string bar = "<div class=\"stack\" aria-hidden=\"true\">", rows;
  for (std::size_t i = 0; i < stages; ++i) {
    const stage_cost& cost = found.costs[i];
    if (all > 0 && cost.seconds > 0)
      bar += fmt::format("<i class=\"s{}\" style=\"width:{:.3f}%\"></i>", i, 100 * cost.seconds / all);
    rows += fmt::format(
        "<tr><td><span class=\"key s{}\"></span>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        i, in_words(static_cast<stage>(i)), cost.runs, cost.batches, time_text(cost.seconds));
  }
  const auto sum = [](std::string_view what, const std::string& batches, const std::string& time) {
    return fmt::format("<tr><td>{}</td><td></td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n", what, batches,
                       time);
  };
  return bar +
         "</div>\n<div class=\"scroll\"><table><thead><tr><th>Stage</th><th class=\"n\">Runs</th><th class=\"n\">Batches</th><th class=\"n\">Time</th></tr></thead><tbody>\n" +
         rows + sum("Whole search", "", time_text(all)) +
         sum("Kept as training, at the found plan's speed", fmt::format("{}", found.trained_batches),
             time_text(kept_seconds(found))) +
         sum("<b>What the search cost</b>", "",
             fmt::format("<b>{}</b>, {}", time_text(found.overhead_seconds()), overhead_text(found))) +
         "</tbody></table></div>\n";
}

template <std::same_as<outcome> Outcome>
std::string settings(const Outcome& found) {
  std::string searched;
  for (const precision p : found.precisions) searched += precision_badge(p) + " ";
  const hardware& h = found.hardware;
  std::string features;
  for (const auto& feature : h.isa) features += (features.empty() ? "" : ", ") + html(feature);
  if (h.compute_capability > 0)
    features = fmt::format("compute capability {}.{}", h.compute_capability / 10, h.compute_capability % 10);
  return fmt::format(
      "<dl><dt>Device</dt><dd>{} ({})</dd><dt>Can do</dt><dd>{}</dd><dt>Threads</dt><dd>{}</dd>"
      "<dt>Precisions searched</dt><dd>{}</dd><dt>Judged by</dt><dd>{}, at most {:g}% {} FP32's</dd>"
      "<dt>Batches per epoch</dt><dd>{}</dd><dt>Runs</dt><dd>{}</dd><dt>Operators</dt><dd>{}, fingerprint {:016x}</dd><dt>Plan</dt><dd><code>{}</code></dd></dl>\n",
      html(h.name), name(h.kind), features.empty() ? "not known" : features,
      h.threads > 0 ? fmt::format("{}", h.threads) : "not known", searched, name(found.criterion),
      100 * found.tolerance, found.higher_is_better || found.criterion == criterion::scores ? "below" : "above",
      found.batches_per_epoch > 0 ? fmt::format("{}", found.batches_per_epoch) : "not known",
      found.recalled > 0 ? fmt::format("{}, {} of them from the ledger", found.trials.size(), found.recalled)
                         : fmt::format("{}", found.trials.size()),
      found.graph.size(), found.graph.fingerprint(), found.plan.size() > 5000 ? "in the plan file" : found.plan.str());
}

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

}  // namespace detail

/// The report as one HTML text.
template <std::same_as<outcome> Outcome>
std::string html_text(const Outcome& found) {
  using namespace detail;
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,"
      "initial-scale=1\">\n<title>{}</title>\n<style>{}</style></head><body><main>\n<header><p class=\"eyebrow\">CoMP precision search</p><h1>{}</h1>\n",
      headline(found), html_style, headline(found));
  text += lead(found) + "</header>\n" + tiles(found) + warnings(found);
  text += section(
      "The plan",
      "One cell per operator in execution order; its letter is its precision in the plan string. Point at a cell, or move with the arrow keys, to read more.",
      precision_legend(found.plan) + plan_strip(found));
  text += section(
      "Head to head",
      "Batches of all contestants in turns, so that drift of the machine hits all alike; medians with 95% intervals. Losses are differences from FP32's on the same batches.",
      contest_table(found));
  text += section(
      "Each candidate: time against loss",
      "Every plan that was judged: its mean loss against FP32's on the same batches. Further left is faster, lower is better. A loss above the chart is drawn at its upper edge.",
      scatter(found));
  text += section("Why each operator has its precision", "Matrix products show m x n x k.", operator_table(found));
  text += section(
      "Where the search's time went",
      "Batches under FP32 and under accepted plans are training already done; they count with the time that they take under the found plan.",
      costs(found));
  text += section(
      "Every run",
      "Batches of one plan in turns are one line. FP32's batches come in parts, as many as its candidates need.",
      trial_table(found));
  text += section("Hardware and settings", "What the result holds for.", settings(found));
  return text + fmt::format("</main><div id=\"tip\" role=\"tooltip\" hidden></div><script>{}</script></body></html>\n",
                            html_script);
}

/// Throws: `file_error` when the file cannot be written; the old one is then still there.
template <std::same_as<outcome> Outcome>
void write_html(const Outcome& found, const std::string& path) {
  detail::write_file(path, html_text(found));
}

/// An observer: writes the report when the search is done.
class html_report {
 public:
  explicit html_report(std::string path) : path_{std::move(path)} {}
  void search_done(const std::same_as<outcome> auto& found) { write_html(found, path_); }

 private:
  std::string path_;
};

}  // namespace comp
