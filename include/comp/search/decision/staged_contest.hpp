// SPDX-License-Identifier: Apache-2.0
// The contest at the end of a search with strategies of the user's. Whether its plans train is not known, so its
// batches are undone; the plan that is taken is judged by its own losses, unless the search was told to look at none.
#pragma once

#include <algorithm>
#include <comp/search/convergence/loss_trials.hpp>
#include <comp/search/decision/search_budget.hpp>
#include <comp/search/decision/session.hpp>
#include <comp/search/decision/winner.hpp>
#include <comp/search/timing/contest.hpp>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace comp {

class staged_contest {
 public:
  staged_contest(const search_session& search, const search_budget& budget)
      : search_{search}, choice_{search, budget}, any_loss_{search.settings.stages == stages::times_only} {}

  /// Returns: the index in outcome::contest of the plan to take. The trainer is left with the training of that plan, as
  /// far as there is one.
  std::size_t hold(std::vector<racer> racers) {
    std::vector<contestant>& contest = search_.log.contest;
    const search_settings& settings = search_.settings;
    const race_batches batches{
        .trains = false, .same_batches = search_.trials.lengths_differ(), .as_trained = search_.log.compiled};
    search_.run.timed(stage::contest,
                      [&] { contest = hold_contest(search_.run, settings.race, std::move(racers), batches); });
    describe_contest(search_.log, search_.trials);
    search_.trials.keep_slow_plans();
    const auto order = ranking(
        contest, [](const plan&) { return std::numeric_limits<double>::quiet_NaN(); }, settings.memory_limit,
        settings.slowdown);
    const auto wins = [&](std::size_t at) {
      contestant& c = contest[at];
      const bool pays = settings.slowdown > 0 || choice_.fits_instead(c) || !choice_.undecided(c);
      return at == 0 || (pays && is_accepted(c));
    };
    const std::size_t winner = choice_.beside_rules({.winner = *std::find_if(order.begin(), order.end(), wins),
                                                     .settings = settings.race,
                                                     .batches = batches,
                                                     .known_faster = [](const plan&, const plan&) { return false; },
                                                     .accepts = [&](contestant& c) { return is_accepted(c); }});
    if (!any_loss_) choice_.warn_of_few_batches(winner);
    go_to_training_of(winner);
    return winner;
  }

 private:
  bool is_accepted(contestant& c) {
    if (any_loss_) return true;
    choice_.expect_growing_harm(c.plan, 0);
    search_.run.timed(stage::contest, [&] { (void)search_.trials.judge(c.plan, c.label); });
    const trial& judged = search_.trials.known(c.plan)->trial;
    describe(c, search_.log, search_.trials);
    if (!judged.accepted) {
      search_.log.warnings.push_back(
          fmt::format("\"{}\" was fastest but its losses were not accepted ({}, loss {:.6g})", c.label,
                      name(judged.sample.status), judged.sample.loss));
    }
    return judged.accepted;
  }

  void go_to_training_of(std::size_t winner) {
    const auto* judged = any_loss_ ? nullptr : search_.trials.known(search_.log.contest[winner].plan);
    const auto end = winner == 0 ? search_.trials.fp32_end() : judged != nullptr ? judged->end : std::nullopt;
    search_.run.restore(end ? *end : search_.trials.reference().start());
  }

  search_session search_;
  winner_choice choice_;
  bool any_loss_;
};

}  // namespace comp
