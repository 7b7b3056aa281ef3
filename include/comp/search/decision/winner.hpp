// SPDX-License-Identifier: Apache-2.0
// Decides which contestant is taken at the end of a search, by more than the times of its batches.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/decision/search_budget.hpp>
#include <comp/search/decision/session.hpp>
#include <comp/search/timing/beside_rules.hpp>
#include <comp/search/timing/contest.hpp>
#include <cstddef>
#include <functional>

namespace comp {

/// A contestant that is to be compared with the best rule-based plan.
struct question_beside_rules {
  std::size_t winner = 0;  // its index in the contest
  bool raced = true;       // it took part in the contest's race
  race_settings settings = {};
  race_batches batches = {};
  std::function<bool(const plan&, const plan& than)> known_faster = {};  // by what operators and casts cost
  std::function<bool(contestant&)> accepts = {};                         // judges its losses, unless that is done
};

class winner_choice {
 public:
  winner_choice(const search_session& search, const search_budget& budget) : search_{search}, budget_{budget} {}

  /// Returns: true if FP32 needs more memory than is allowed and `c` does not: it is wanted even if it is slower.
  bool fits_instead(const contestant& c) const {
    return budget_.too_large(search_.log.contest.front()) && !budget_.too_large(c);
  }

  /// Returns: true if neither the contest nor the batches that judged its losses say that `c` is faster than FP32.
  bool undecided(const contestant& c) const {
    const auto* judged = search_.trials.known(c.plan);
    const bool clear = !search_.log.compiled && judged != nullptr && judged->trial.accepted &&
                       judged->trial.bounds.high < search_.trials.fp32_seconds();
    return too_noisy(c) && !clear;
  }

  /// If `p` has formats below 16 bits, plans are judged by many batches from now on: the harm of such formats grows
  /// with the training, which few batches do not show. A test may take what is left of the budget, half of it for
  /// FP32's batches, and at least a quarter of the whole. `left`: how many of FP32's batches are left to pay for.
  void expect_growing_harm(const plan& p, double left) const {
    constexpr std::size_t most = 512;
    if (search_.trials.by_epochs() || !p.has_scaled()) return;
    const std::size_t least = std::min(budget_.batches() / 4, most);
    search_.trials.expect_growth(std::max(static_cast<std::size_t>(std::clamp(left / 2, 0.0, double{most})), least));
  }
  /// Warns if the winner has formats below 16 bits and few batches judged it.
  void warn_of_few_batches(std::size_t winner) const {
    constexpr std::size_t few = 128;
    const contestant& won = search_.log.contest[winner];
    if (won.loss_batches >= few || !won.plan.has_scaled()) return;
    search_.run.warn(fmt::format(
        "the losses of \"{}\" were compared with FP32's in {} batches alone (harm of formats below 16 bits grows with the "
        "training): raise settings.budget to judge it by more batches, or plan more epochs",
        won.label, won.loss_batches));
  }

  /// Warns if FP32 won and a contestant that is faster was neither accepted nor shown to train worse.
  void warn_of_undecided(std::size_t winner) const {
    const contestant* fastest = nullptr;
    for (const contestant& c : search_.log.contest) {
      const bool open = c.loss && detail::rejected(c) && !is_shown_worse(*c.loss, search_.settings.tolerance);
      if (!open || !c.over_fp32.clearly_faster() || !std::isfinite(c.over_fp32.bounds.high)) continue;
      if (fastest == nullptr || c.over_fp32.ratio > fastest->over_fp32.ratio) fastest = &c;
    }
    if (winner == 0 && fastest != nullptr) search_.run.warn(why_fp32_is_kept(*fastest, search_.settings.tolerance));
  }

  /// Returns: the index of the contestant to take: the winner, or a rule-based plan. A rule-based plan that is not
  /// slower than FP32 is kept unless the winner was shown to be faster. If noise hides which of it and FP32 is faster,
  /// it is taken in FP32's place.
  std::size_t beside_rules(const question_beside_rules& asked) const {
    const contestant& won = search_.log.contest[asked.winner];
    if (won.rule_based || search_.settings.slowdown > 0) return asked.winner;
    const bool is_fp32 = asked.winner == 0;
    const auto at = fastest_rules(search_.log.contest, [&](const contestant& c) {
      const bool fits = !budget_.too_large(c) || budget_.too_large(won);
      return fits && (is_fp32 ? undecided(c) : !(c.over_fp32.ratio < 1) || fits_instead(c));
    });
    if (!at) return asked.winner;
    contestant& rules = search_.log.contest[*at];
    if (is_fp32) {
      if (!asked.accepts(rules)) return 0;
      search_.run.warn(why_rules_stand_for_fp32(rules));
      return *at;
    }
    paired_speedup gain{};
    search_.run.timed(stage::contest, [&] {
      gain = gain_over_rules(search_.run, asked.settings, won, rules, asked.raced, asked.batches);
    });
    const bool has_costs = !rules.plan.runs_autocast();  // the backend's own autocast is no plan of operators
    if (gain.clearly_faster() || (gain.ratio > 1 && has_costs && asked.known_faster(won.plan, rules.plan)))
      return asked.winner;
    if (!asked.accepts(rules)) return asked.winner;
    if (gain.ratio > 1) search_.run.warn(why_rules_are_kept(won, rules, gain));
    return *at;
  }

 private:
  search_session search_;
  search_budget budget_;
};

}  // namespace comp
