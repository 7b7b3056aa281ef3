// SPDX-License-Identifier: Apache-2.0
// Runs the paper's two stages with strategies that the user chose. Stage 1 judges plans by their losses; stage 2 times
// plans that keep the operators which stage 1 decided. If stage 1 accepts no plan, the fastest rejected one is bisected
// over its operators, as in the default strategy.
// Not here: the contest after it (staged_contest.hpp), the default strategy, which does both stages in one
// (guided_search.hpp). Source: CoMP paper, section 3 (algorithms 1 and 2); "gradually return to a more conservative
// plan", section 4.4; one stage alone, section 4.6.
#pragma once

#include <comp/search/convergence/loss_trials.hpp>
#include <comp/search/convergence/stage_one.hpp>
#include <comp/search/decision/accepted_operators.hpp>
#include <comp/search/decision/harm_scores.hpp>
#include <comp/search/decision/learned_costs.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/space/candidate_space.hpp>
#include <comp/search/space/segments.hpp>
#include <comp/search/timing/stage_two.hpp>
#include <comp/search/trainer/op_support.hpp>
#include <comp/strategy/greedy.hpp>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace comp {

class staged_search {
 public:
  staged_search(const search_session& search, const candidate_space& candidates, const guided_start& from,
                const op_support& runs)
      : search_{search},
        candidates_{candidates},
        from_{from},
        runs_{runs},
        segments_(search.log.graph.size(), segment_kind::decided) {}

  /// Returns: the fastest plan that was found; FP32 if there is no other.
  plan find(const any_strategy& stage1, const any_strategy& stage2) {
    if (search_.settings.stages != stages::times_only && !from_.lows.empty()) {
      search_.run.timed(stage::losses, [&] {
        stage_one first{search_.trials, search_.log};
        best_ = first.run(stage1, candidates_.space);
        if (!best_) best_ = mended(first.refused() ? first.refused()->plan : candidates_.space.base());
      });
    }
    return by_batches(stage2);
  }

  /// Returns: the trial of the plan that stage 1 found (plan* of the paper's algorithm 1); nothing if it found none or
  /// did not run.
  const std::optional<trial>& stage_one_trial() const { return best_; }
  /// Returns: per operator, whether stage 2 left it decided, searched it, or let it follow its neighbours.
  const std::vector<segment_kind>& segments() const { return segments_; }

 private:
  // Returns: the part of `wanted` whose losses are accepted; nothing if there is none. No budget limits it, because the
  // user chose a strategy and with it what a search may cost.
  std::optional<trial> mended(plan wanted) {
    const plan& fp32 = search_.trials.reference().plan();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      // The reference may be low here for lack of memory.
      if (!contains(from_.levels[i], wanted[i])) wanted[i] = fp32[i];
    }
    if (wanted == fp32 || !search_.run.restores()) return {};
    search_.log.warnings.push_back(
        "no candidate of stage 1 was accepted: the fastest one was mended, operator by operator, until its losses were");
    guided_start from = from_;
    from.batches_per_epoch = 0;
    learned_costs costs{search_, from.levels};
    const mending_settings mending = {};
    const plan part = accepted_operators{search_, mending, costs, from}.find(wanted);
    search_.trials.affords = {};
    return part == fp32 ? std::nullopt : std::optional{search_.trials.known(part)->trial};
  }

  // Runs stage 2 around the operators that stage 1 decided (the paper's P_s1 in algorithm 2). It starts from FP32
  // instead if stage 1 found no plan, or one that is too slow to build on.
  plan by_batches(const any_strategy& stage2) {
    const plan& fp32 = search_.trials.reference().plan();
    if (search_.settings.stages == stages::losses_only || from_.lows.empty()) return best_ ? best_->plan : fp32;
    search_space space;
    if (search_.settings.stages == stages::times_only) {
      space = space_without_losses(candidates_, search_.log.graph, from_.lows, search_.settings.times_tie, runs_);
    } else {
      const bool pays = best_ && best_->seconds < search_.settings.cut.slower_than_fp32 * search_.trials.fp32_seconds();
      auto undecided = make_segment_space(search_.log.graph, candidates_.roles, pays ? best_->plan : fp32,
                                          search_.settings.times_tie, runs_);
      segments_ = std::move(undecided.kinds);
      space = std::move(undecided.space);
    }
    plan fastest = fp32;
    search_.run.timed(stage::times, [&] {
      const auto here = search_.run.save();
      fastest = race_for(space, stage2);
      search_.run.restore(here);
    });
    return fastest;
  }

  // The size of stage 2's space is known only after stage 1. If it is too large for the chosen strategy, greedy
  // searches it, so that the cost of stage 1 is not wasted.
  plan race_for(const search_space& space, const any_strategy& stage2) {
    stage_two second{search_.run, search_.log, search_.settings.race};
    try {
      (void)stage2.start(space);
    } catch (const space_error& e) {
      search_.log.warnings.push_back(fmt::format("stage 2 was searched by greedy: {}", e.what()));
      return second.run(strategy::greedy{}, space);
    }
    return second.run(stage2, space);
  }

  search_session search_;
  const candidate_space& candidates_;
  const guided_start& from_;
  const op_support& runs_;
  std::vector<segment_kind> segments_;
  std::optional<trial> best_ = {};
};

}  // namespace comp
