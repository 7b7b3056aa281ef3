// SPDX-License-Identifier: Apache-2.0
// The contest at the end of a guided search. Its batches are training, because only plans with accepted operators take
// part; the one that is taken is judged by its own losses first.
#pragma once

#include <algorithm>
#include <comp/search/decision/guided_search.hpp>
#include <comp/search/decision/search_budget.hpp>
#include <comp/search/decision/session.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/decision/winner.hpp>
#include <comp/search/timing/contest.hpp>
#include <comp/search/timing/rivals.hpp>
#include <cstddef>
#include <utility>
#include <vector>

namespace comp {

class guided_contest {
 public:
  guided_contest(const search_session& search, const starting_plans& plans, const search_budget& budget,
                 guided_search& guided)
      : search_{search}, plans_{plans}, budget_{budget}, guided_{guided} {}

  /// Returns: the index in outcome::contest of the plan to take. `proposal`: the fastest plan that the search found.
  /// The trainer is left with the training of that plan, as far as there is one.
  std::size_t hold(const plan& proposal) {
    found_ = proposal;
    search_.run.timed(stage::contest, [&] { race_all(); });
    guided_.learn(search_.log.contest);
    describe_contest(search_.log, search_.trials);
    for (const contestant& c : search_.log.contest) {
      if (c.lost > 0) search_.trials.expect_lost(c.lost, c.seconds.size());
    }
    const std::size_t raced = search_.log.contest.size(), first = fastest_accepted();
    const std::size_t winner = choice_.beside_rules(
        {.winner = first,
         .raced = first < raced,
         .settings = budget_.contest(0),
         .batches = batches(),
         .known_faster = [&](const plan& p, const plan& than) { return guided_.is_faster(p, than); },
         .accepts = [&](contestant& c) { return is_accepted(c); }});
    choice_.warn_of_undecided(winner);
    go_to_training_of(winner);
    return winner;
  }

  /// The search's own plan: the proposal, or what was left of it when its losses had been rejected.
  const plan& found() const { return found_; }

 private:
  race_batches batches() const { return {.trains = true, .same_batches = search_.trials.lengths_differ()}; }

  void race_all() {
    std::vector<racer> racers = plans_.racers(found_);
    enter_found(racers, guided_.allowed(), search_.log.graph);
    if (!guided_.least_memory().empty()) enter_found(racers, guided_.least_memory(), search_.log.graph);
    const std::vector<racer> refused = take_refused(racers);
    std::vector<contestant>& contest = search_.log.contest;
    if (racers.size() > 1) {
      const auto* pairs = search_.trials.known(found_);
      const std::size_t judged = pairs != nullptr ? pairs->trial.sample.batch_seconds.size() : 0;
      const std::size_t known = std::min(judged, search_.log.baseline.batch_seconds.size());
      contest = hold_contest(search_.run, budget_.contest(known), std::move(racers), batches());
    } else {
      contest.push_back({.label = "fp32", .plan = plans_.fp32(), .over_fp32 = {1, {1, 1}}});
    }
    if (contest.front().peak_bytes == 0) contest.front().peak_bytes = search_.log.baseline.peak_bytes;
    for (const racer& r : refused) contest.push_back({.label = r.label, .plan = r.plan, .rule_based = r.rule_based});
  }

  // Takes out whose losses were not accepted, or are not known and cost too much to judge. The state stays.
  std::vector<racer> take_refused(std::vector<racer>& racers) {
    const checkpoint here = search_.run.save();
    std::vector<racer> refused;
    for (auto r = racers.begin() + 1; r != racers.end();) {
      if (guided_.is_accepted(r->plan) ||
          (guided_.may_go_on() && search_.trials.judge(r->plan, r->label).trial.accepted)) {
        ++r;
      } else {
        refused.push_back(std::move(*r));
        r = racers.erase(r);
      }
    }
    search_.run.restore(here);
    search_.run.keep_state();
    return refused;
  }

  // The fastest contestant whose own losses are accepted. Where those of the very fastest are rejected it is mended,
  // and what is left takes part, twice at most.
  std::size_t fastest_accepted() {
    std::vector<contestant>& contest = search_.log.contest;
    const search_settings& settings = search_.settings;
    const auto wins = [&](std::size_t at) {
      contestant& c = contest[at];
      const bool pays =
          settings.slowdown > 0 || choice_.fits_instead(c) || (c.over_fp32.ratio > 1 && !choice_.undecided(c));
      return at == 0 || (pays && is_accepted(c));
    };
    for (int mended = 0;; ++mended) {
      const auto order = ranking(
          contest, [&](const plan& p) { return guided_.predicted(p); }, settings.memory_limit, settings.slowdown);
      const auto first = std::find_if(order.begin(), order.end(), wins);
      const contestant& fastest = contest[order.front()];
      if (mended == 2 || !detail::rejected(fastest) || !enter_mended(guided_.mended(fastest.plan)))
        return first == order.end() ? 0 : *first;
    }
  }

  // What is left of a contestant that was rejected takes part by the times of the batches that judged it.
  bool enter_mended(const plan& part) {
    std::vector<contestant>& contest = search_.log.contest;
    const auto same = [&](const contestant& c) { return c.plan == part; };
    if (std::any_of(contest.begin(), contest.end(), same)) return false;
    contest.push_back({.label = label_of_found(part, search_.log.graph, contest), .plan = part});
    describe_contest(search_.log, search_.trials);
    found_ = part;
    return true;
  }

  // A part of an accepted plan is expected to train; the one that is taken is judged itself. The state stays.
  bool is_accepted(contestant& c) {
    const bool known = search_.trials.known(c.plan) != nullptr;
    search_.run.timed(stage::contest, [&] {
      const checkpoint here = search_.run.save();
      (void)search_.trials.judge(c.plan, c.label, true);
      search_.run.restore(here);
      search_.run.keep_state();
    });
    const auto& judged = *search_.trials.known(c.plan);
    c.loss = judged.verdict;
    c.loss_batches = static_cast<std::size_t>(judged.trial.sample.batches);
    if (judged.trial.accepted || known) return judged.trial.accepted;
    search_.log.warnings.push_back(why_not_taken(c, search_.settings.tolerance));
    return false;
  }

  void go_to_training_of(std::size_t winner) {
    if (winner == 0 && search_.run.trained().batches == 0 && search_.trials.fp32_end())
      search_.run.restore(*search_.trials.fp32_end());
    const auto* judged = search_.trials.known(search_.log.contest[winner].plan);
    if (judged != nullptr && judged->end && judged->end->trained.batches > search_.run.trained().batches)
      search_.run.restore(*judged->end);
  }

  search_session search_;
  const starting_plans& plans_;
  search_budget budget_;
  guided_search& guided_;
  winner_choice choice_{search_, budget_};
  plan found_ = {};
};

}  // namespace comp
