// SPDX-License-Identifier: Apache-2.0
// Tells whether the found plan is faster than the rule-based plan, which a user has without a search (torch.autocast).
// The found plan wins only if it is shown to be faster. Both plans are known to train, so further rounds between the
// two count as training.
#pragma once

#include <algorithm>
#include <comp/core/statistics.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/timing/race.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace comp {

/// Returns: the index of the rule-based plan with the shortest batches among those that ran, were not rejected and meet
/// `may_win`; nothing if there is none.
std::optional<std::size_t> fastest_rules(const std::vector<contestant>& contest, auto may_win) {
  std::optional<std::size_t> best;
  for (std::size_t i = 1; i < contest.size(); ++i) {
    const contestant& c = contest[i];
    if (!c.rule_based || c.status != status::ok || c.seconds.empty() || detail::rejected(c) || !may_win(c)) continue;
    if (!best || compare_paired(contest[*best].seconds, c.seconds).ratio > 1) best = i;
  }
  return best;
}

/// Returns: how many times as fast as `rules` the plan `found` is. If both `raced` in the contest, their pairs of it
/// are used. If these leave it open, the two run further rounds in turns, as many as a contest has at most.
inline paired_speedup gain_over_rules(evaluator& run, const race_settings& settings, const contestant& found,
                                      const contestant& rules, bool raced, race_batches batches) {
  std::vector<double> of_found, of_rules;
  if (raced) {
    const std::size_t rounds = std::min(found.seconds.size(), rules.seconds.size());
    of_found.assign(found.seconds.begin(), found.seconds.begin() + static_cast<std::ptrdiff_t>(rounds));
    of_rules.assign(rules.seconds.begin(), rules.seconds.begin() + static_cast<std::ptrdiff_t>(rounds));
  }
  paired_speedup gain = compare_paired(of_rules, of_found);
  for (std::size_t rounds_added = 0; rounds_added < settings.contest_rounds; rounds_added += settings.min_rounds) {
    if (gain.clearly_faster() || gain.clearly_slower()) break;
    std::vector<racer> two{{.plan = rules.plan, .label = rules.label}, {.plan = found.plan, .label = found.label}};
    race{run, stage::contest, settings, settings.min_rounds, batches}.run(two, false);
    // The rule-based plan no longer trains, so nothing was shown.
    if (two[0].status != status::ok) return {.ratio = 1, .bounds = {}};
    if (two[1].status != status::ok) return {.ratio = 0, .bounds = {0, 0}};
    of_rules.insert(of_rules.end(), two[0].seconds.begin(), two[0].seconds.end());
    of_found.insert(of_found.end(), two[1].seconds.begin(), two[1].seconds.end());
    gain = compare_paired(of_rules, of_found);
  }
  return gain;
}

/// Returns: the warning for a rule-based plan that stands for FP32, because noise hides which of the two is faster.
inline std::string why_rules_stand_for_fp32(const contestant& rules) {
  return fmt::format(
      "too noisy to tell: \"{}\" kept ({:.2f} to {:.2f} times as fast as FP32, 95%; its losses were accepted): search again "
      "when nothing else runs on the machine, or with a higher settings.race.fp32_rounds",
      rules.label, rules.over_fp32.bounds.low, rules.over_fp32.bounds.high);
}

/// Returns: the warning for a rule-based plan that is kept although the found one looks faster.
inline std::string why_rules_are_kept(const contestant& found, const contestant& rules, const paired_speedup& gain) {
  return fmt::format(
      "\"{}\" was not shown to be faster than \"{}\", which is kept ({:.3f} to {:.3f} times as fast, 95%): search again when "
      "nothing else runs on the machine, or with a higher settings.race.contest_rounds",
      found.label, rules.label, gain.bounds.low, gain.bounds.high);
}

}  // namespace comp
