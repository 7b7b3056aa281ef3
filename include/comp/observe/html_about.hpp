// SPDX-License-Identifier: Apache-2.0
// The parts of the report that say which model, data and machine it is about, and what its reader can do next: use the
// plan, see which operators the loss keeps in FP32, and search again if another search would tell more.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/files/json_reader.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_head.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/report_info.hpp>
#include <comp/search/decision/reasons.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace comp::detail {

/// A line such as "mlp; optdigits.csv.gz; AMD EPYC 9B14; 2026-11-22 13:20; comp 0.2.0".
inline std::string about_line(const outcome& result, const report_info& info) {
  std::string text;
  for (const std::string& part :
       {info.model, info.data, result.hardware.name, info.date, fmt::format("comp {}", comp_version)}) {
    if (!part.empty()) text += fmt::format("<span>{}</span> ", html(part));
  }
  return "<p class=\"about soft\">" + text + "</p>\n";
}

inline std::string code_line(std::string_view what, std::string_view code) {
  return fmt::format("<p>{}</p><pre tabindex=\"0\"><code>{}</code></pre>\n", what, html(code));
}

/// Returns the operators that stay in FP32 for one kind of reason; those whose lowering would save most come first.
inline std::vector<std::size_t> left_by(op_evidence::kind what, const outcome& result) {
  std::vector<std::size_t> ops;
  for (std::size_t i = 0; i < std::min(result.evidence.size(), result.plan.size()); ++i) {
    if (result.evidence[i].what == what && !is_low(result.plan[i])) ops.push_back(i);
  }
  const auto saved = [&](std::size_t i) {
    const op_evidence& f = result.evidence[i];
    return std::isfinite(f.saves) && std::isfinite(f.casts) ? f.saves - f.casts : -1e300;
  };
  std::sort(ops.begin(), ops.end(), [&](std::size_t a, std::size_t b) {  // std's stable_sort is deprecated under clang
    return saved(a) != saved(b) ? saved(a) > saved(b) : a < b;
  });
  return ops;
}

/// Returns a paragraph with the operators that stay in FP32 because lowering them harmed the loss, or a sentence that
/// there are none.
inline std::string held_back(const outcome& result) {
  if (result.evidence.empty() || result.evidence.size() != result.graph.size()) return {};
  constexpr std::size_t most = 3;
  const std::vector<std::size_t> harmful = left_by(op_evidence::kind::harmful, result);
  if (harmful.empty()) {
    return result.plan.count_low() == result.plan.size() || !left_by(op_evidence::kind::undecided, result).empty()
               ? ""
               : "<p>No operator was found to harm the loss: what is not lowered would gain nothing, or may not be.</p>\n";
  }
  std::string text = fmt::format("<p>The loss keeps {} operator{} from going lower{}:</p><ul>", harmful.size(),
                                 harmful.size() == 1 ? "" : "s",
                                 harmful.size() > most ? fmt::format("; the {} that would save most", most) : "");
  for (std::size_t n = 0; n < std::min(most, harmful.size()); ++n) {
    const std::size_t i = harmful[n];
    text += fmt::format("<li><b>{}</b> ({}): {}</li>", html(result.graph[i].name), html(result.graph[i].kind),
                        html(guided_reason(result.evidence[i], result.plan[i], result.plan[i], "")));
  }
  return text + "</ul>\n";
}

/// Returns a sentence for each thing that another search could find out and this one did not.
inline std::vector<std::string> search_again(const outcome& result) {
  std::vector<std::string> advice;
  constexpr double worth_it = 1.05;
  const auto noisy = std::find_if(result.contest.begin(), result.contest.end(), [&](const contestant& c) {
    return (c.plan == result.plan || fp32_won(result)) && c.plan != result.contest.front().plan && !rejected(c) &&
           c.over_fp32.within_noise() && (c.plan == result.plan || c.over_fp32.bounds.high > worth_it);
  });
  if (noisy != result.contest.end()) {
    advice.push_back(fmt::format(
        "on a quiet machine, or with more rounds (settings.race.contest_rounds): \"{}\" was {} times as fast "
        "as FP32, which is too noisy to tell",
        noisy->label, bounds_text(noisy->over_fp32.bounds)));
  }
  if (const auto open = left_by(op_evidence::kind::undecided, result).size(); open > 0) {
    advice.push_back(
        fmt::format("with a larger budget (settings.budget, train --budget): {} operator{} low in plans that were not "
                    "accepted and not tried alone",
                    open, open == 1 ? " was" : "s were"));
  }
  if (!result.contest.empty() && result.batches_per_epoch == 0) {
    advice.push_back("with batches_per_epoch() in the trainer: what the search trains then counts as training");
  }
  if (const contestant* winner = winner_of(result); winner != nullptr && above_limit(*winner, result)) {
    advice.push_back("with a higher memory limit or a smaller batch: no accepted plan stays within this one");
  }
  return advice;
}

inline std::string what_next(const outcome& result, const report_info& info) {
  std::string text;
  if (fp32_won(result)) {
    text = "<p>Train on in FP32: there is no plan to use.</p>\n";
  } else {
    const std::string file = info.plan_file.empty() ? "plan.json" : info.plan_file;
    text = code_line(
        "Use the plan in your own trainer:",
        fmt::format("trainer.set_precision(comp::load_plan({}, trainer.graph()).plan);", in_quotes(file, file.size())));
    if (!info.use_command.empty()) text += code_line("Train with it:", info.use_command);
  }
  text += held_back(result);
  if (const auto advice = search_again(result); !advice.empty()) {
    text += "<p>Search again</p><ul>";
    for (const std::string& each : advice) text += "<li>" + html(each) + "</li>";
    text += "</ul>\n";
  }
  return text;
}

/// Returns the list of what the result holds for. Facts that the backend did not tell say so, rather than being left
/// out.
inline std::string settings(const outcome& result, const report_info& info) {
  std::string searched;
  for (const precision p : result.precisions) searched += precision_badge(p) + " ";
  const hardware& h = result.hardware;
  std::string features = html(joined(h.isa, ", "));
  if (h.compute_capability > 0)
    features = fmt::format("compute capability {}.{}", h.compute_capability / 10, h.compute_capability % 10);
  const auto entry = [](std::string_view what, const std::string& is) {
    return is.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>", what, is);
  };
  return "<dl>" + entry("Model", html(info.model)) + entry("Data", html(info.data)) +
         entry("Operators", fmt::format("{}, fingerprint {:016x}", result.graph.size(), result.graph.fingerprint())) +
         entry("Device", fmt::format("{} ({})", html(h.name), name(h.kind))) +
         entry("Can do", features.empty() ? "not known" : features) +
         entry("Threads", h.threads > 0 ? fmt::format("{}", h.threads) : "not known") + entry("Date", html(info.date)) +
         entry("comp", std::string{comp_version}) +
         entry("Command", info.command.empty() ? "" : "<code>" + html(info.command) + "</code>") +
         entry("Precisions searched", searched) +
         entry("Judged by",
               fmt::format("{}, at most {:g}% {} FP32's", name(result.criterion), 100 * result.tolerance,
                           result.higher_is_better || result.criterion == criterion::scores ? "below" : "above")) +
         entry("Timed by", result.compiled ? "compiled steps" : "") +
         entry("Batches per epoch",
               result.batches_per_epoch > 0 ? fmt::format("{}", result.batches_per_epoch) : "not known") +
         entry("Runs", result.recalled > 0
                           ? fmt::format("{}, {} of them from the ledger", result.trials.size(), result.recalled)
                           : fmt::format("{}", result.trials.size())) +
         entry("Plan", result.plan.size() == 0     ? ""
                       : result.plan.size() > 5000 ? "in the plan file"
                                                   : fmt::format("<code>{}</code>", result.plan.str())) +
         "</dl>\n";
}

}  // namespace comp::detail
