// SPDX-License-Identifier: Apache-2.0
// One self-contained HTML file about a search: what was found and how much it gives, the plan over the operators, the
// contest, every candidate, why each operator has its precision, and where the search's time went. Opens from disk in
// any browser, light or dark, on a phone, on paper, by keyboard; whatever comes from outside is escaped.
// Not here: the machine-readable figures (observe/summary.hpp).
#pragma once

#include <array>
#include <comp/observe/figures.hpp>
#include <comp/observe/file.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_runs.hpp>
#include <comp/observe/html_template.hpp>
#include <comp/search/observers.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace comp {

namespace detail {

template <std::same_as<outcome> Outcome>
std::string headline(const Outcome& found) {
  const plan fp32{found.plan.size()};
  if (found.plan == fp32) return "FP32 is the fastest plan here that keeps the loss";
  return fmt::format("{:.2f} times as fast as FP32, its loss within {:g}%", found.speedup, 100 * found.tolerance);
}

/// "1.07 times as fast as the rule-based plan (95%: 1.02 to 1.10)"; empty without one.
template <std::same_as<outcome> Outcome>
std::string against_rules(const Outcome& found) {
  const contestant *winner = winner_of(found), *rules = rule_based_of(found);
  if (winner == nullptr || rules == nullptr) return {};
  if (winner == rules) return "the same as the rule-based plan";
  const auto ratio = over(*winner, *rules);
  return fmt::format("{:.2f} times as fast as the best rule-based plan (95%: {})", ratio.ratio,
                     bounds_text(ratio.bounds));
}

template <std::same_as<outcome> Outcome>
std::string lead(const Outcome& found) {
  std::string text = fmt::format("<p class=\"lead\">The found plan runs {}.", counts_text(found.plan));
  if (found.speedup != 1) {
    text +=
        fmt::format(" It is {:.2f} times as fast as FP32 (95%: {})", found.speedup, bounds_text(found.speedup_bounds));
    if (const std::string rules = against_rules(found); !rules.empty()) text += " and " + rules;
    text += ".";
  } else if (const contestant* rules = rule_based_of(found)) {
    text += fmt::format(" The best rule-based plan, {}, ran at {} FP32's speed{}.", html(rules->label),
                        ratio_text(rules->over_fp32.ratio),
                        rules->over_fp32.clearly_faster() ? ", but the loss of its epoch was not accepted"
                                                          : ": no faster beyond noise");
  }
  return text + "</p>\n";
}

inline std::string tile(std::string_view figure, std::string_view what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", figure, what);
}

template <std::same_as<outcome> Outcome>
std::string tiles(const Outcome& found) {
  const contestant *winner = winner_of(found), *rules = rule_based_of(found);
  std::string text = "<div class=\"tiles\">" +
                     tile(ratio_text(found.speedup), "against FP32, 95%: " + bounds_text(found.speedup_bounds));
  if (winner != nullptr && rules != nullptr) {
    const auto ratio = over(*winner, *rules);
    text += tile(ratio_text(ratio.ratio), "against the rule-based plan, 95%: " + bounds_text(ratio.bounds));
  }
  if (found.first_epoch && found.baseline.loss != 0) {
    const double change = 100 * (found.first_epoch->loss - found.baseline.loss) / std::abs(found.baseline.loss);
    text += tile(loss_text(found.first_epoch->loss),
                 fmt::format("epoch loss, {:+.2f}% of FP32's; limit +{:g}%", change, 100 * found.tolerance));
  }
  if (winner != nullptr && winner->peak_bytes > 0) {
    const auto base = static_cast<double>(fp32_of(found)->peak_bytes);
    text += tile(
        bytes_text(winner->peak_bytes),
        base > 0 ? fmt::format("peak memory, {:.0f}% of FP32's", 100 * static_cast<double>(winner->peak_bytes) / base)
                 : "peak memory");
  }
  text += tile(share_text(found.overhead_share()),
               fmt::format("of a 100-epoch training went into the search: {}", time_text(found.overhead_seconds())));
  return text + "</div>\n";
}

template <std::same_as<outcome> Outcome>
std::string costs(const Outcome& found) {
  constexpr std::array words{"FP32 baseline", "Stage 1, epochs", "Stage 2, batches", "Final contest"};
  const double all = found.overhead_seconds();
  const double training = all > 0 ? all / found.overhead_share() : 0;
  std::string bar = "<div class=\"stack\" aria-hidden=\"true\">", rows;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const stage_cost& cost = found.costs[i];
    if (all > 0 && cost.seconds > 0)
      bar += fmt::format("<i class=\"s{}\" style=\"width:{:.3f}%\"></i>", i, 100 * cost.seconds / all);
    rows += fmt::format(
        "<tr><td><span class=\"key s{}\"></span>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.2f}%</td></tr>\n",
        i, words[i], cost.runs, cost.batches, time_text(cost.seconds),
        training > 0 ? 100 * cost.seconds / training : 0);
  }
  return bar +
         "</div>\n<div class=\"scroll\"><table><thead><tr><th>Stage</th><th class=\"n\">Runs</th><th class=\"n\">Batches</th><th class=\"n\">Time</th><th class=\"n\">of a 100-epoch training</th></tr></thead><tbody>\n" +
         rows +
         fmt::format(
             "<tr><td><b>Whole search</b></td><td></td><td></td><td class=\"n\"><b>{}</b></td><td class=\"n\"><b>{}</b></td></tr></tbody></table></div>\n",
             time_text(all), share_text(found.overhead_share()));
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
      "<dt>Precisions searched</dt><dd>{}</dd><dt>Accepted loss</dt><dd>at most {:g}% above FP32's {}</dd>"
      "<dt>Operators</dt><dd>{}, fingerprint {:016x}</dd><dt>Plan</dt><dd><code>{}</code></dd></dl>\n",
      html(h.name), name(h.kind), features.empty() ? "not known" : features,
      h.threads > 0 ? fmt::format("{}", h.threads) : "not known", searched, 100 * found.tolerance,
      loss_text(found.baseline.loss), found.graph.size(), found.graph.fingerprint(),
      found.plan.size() > 5000 ? "in the plan file" : found.plan.str());
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
      "Batches of all contestants in turns, so that drift of the machine hits all alike; medians with 95% intervals.",
      contest_table(found));
  text += section(
      "Each candidate: time against loss",
      "Every epoch that was run from the common start. Further left is faster, lower is better. A loss above the chart is drawn at its upper edge.",
      scatter(found));
  text += section("Why each operator has its precision", "Matrix products show m x n x k.", operator_table(found));
  text += section("Where the search's time went",
                  "The found plan's own epoch is not counted: it is training already done.", costs(found));
  text += section("Every run", "Batches of one plan are one line.", trial_table(found));
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
