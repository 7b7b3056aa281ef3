// SPDX-License-Identifier: Apache-2.0
// One two-stage search on one trainer, stage by stage: FP32, epochs, batches, head-to-head, the winner.
// Not here: what a user writes down (two_stage.hpp). Source: CoMP paper, section 3; what is added to it: design.md,
// section 4.
#pragma once

#include <algorithm>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/strategy.hpp>
#include <comp/search/candidate_space.hpp>
#include <comp/search/contest.hpp>
#include <comp/search/early_cut.hpp>
#include <comp/search/entrants.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/fallbacks.hpp>
#include <comp/search/reasons.hpp>
#include <comp/search/segments.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/signature.hpp>
#include <comp/search/stage_one.hpp>
#include <comp/search/stage_two.hpp>
#include <comp/search/stage_zero.hpp>
#include <comp/strategy/greedy.hpp>
#include <concepts>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// One search on one trainer. Made by two_stage::run.
template <Backend B, OperatorPolicy P, SearchStrategy S1, SearchStrategy S2, class Observers>
class search_run {
  using evaluator_type = evaluator<B, Observers>;
  using epoch_type = finished_epoch<typename evaluator_type::state>;

 public:
  search_run(const P& policy, const S1& stage1, const S2& stage2, const search_settings& settings, B& trainer,
             Observers& observers)
      : policy_{policy},
        stage1_{stage1},
        stage2_{stage2},
        settings_{settings},
        trainer_{trainer},
        observers_{observers} {}

  outcome operator()() {
    prepare();
    evaluator_type run{trainer_, observers_, log_};
    run_ = &run;
    try {
      run.timed(stage::baseline, [&] { baseline_ = stage_zero<evaluator_type>{run, log_, settings_}(); });
      std::optional<epoch_type> best = search_by_epochs();
      const plan found = search_by_batches(best);
      hold_final_contest(found, best);
      settle(best);
    } catch (...) {
      run.to_start();
      throw;
    }
    observers_.search_done(log_);
    return std::move(log_);
  }

 private:
  // Everything that can be refused before the first epoch is refused here.
  void prepare() {
    settings_.check();
    log_.graph = trainer_.graph();
    log_.tolerance = settings_.tolerance;
    if constexpr (detail::knows_hardware<B>) log_.hardware = trainer_.hardware();
    log_.precisions = searched_precisions(trainer_, settings_);
    lows_.assign(log_.precisions.begin() + 1, log_.precisions.end());
    fp32_ = plan{log_.graph.size()};
    require<graph_error>(!log_.graph.empty(),
                         "the model has no operators (there is nothing to plan): record a forward first");
    runs_ = op_support{std::as_const(trainer_), log_.graph, lows_};
    candidates_ = make_candidate_space(policy_, log_.graph, log_.hardware, lows_, settings_.epochs_tie, runs_);
    require_supported(candidates_, log_.graph, supported_precisions(trainer_), runs_);
    rivals_ = rivals_of(settings_.rivals, log_.graph, lows_, supported_precisions(trainer_), runs_);
    std::size_t epochs = 0;
    if (settings_.stages == stages::batches_only) {
      (void)stage2_.start(space_without_losses(candidates_, log_.graph, lows_, settings_.batches_tie, runs_));
    } else {
      epochs = most_plans(stage1_.start(candidates_.space));
    }
    segments_.assign(log_.graph.size(), segment_kind::decided);
    const search_info info{log_.graph, log_.hardware, search_signature(trainer_, log_, settings_), settings_.tolerance,
                           epochs + 2};  // and FP32's, and the winner's when it is another's
    observers_.search_started(info);
  }

  template <class Run>
  static std::size_t most_plans(const Run& run) {
    if constexpr (requires {
                    { run.at_most() } -> std::convertible_to<std::size_t>;
                  })
      return run.at_most();
    return 0;
  }

  // Stage 1.
  std::optional<epoch_type> search_by_epochs() {
    std::optional<epoch_type> best;
    if (settings_.stages == stages::batches_only || lows_.empty()) return best;
    run_->timed(stage::epochs, [&] {
      best = stage_one<evaluator_type>{*run_, log_, settings_, baseline_}(stage1_, candidates_);
    });
    return best;
  }

  // Stage 2, on the decided operators of `best`, or of FP32 when that is far faster.
  plan search_by_batches(const std::optional<epoch_type>& best) {
    if (settings_.stages == stages::epochs_only || lows_.empty()) return best ? best->result.plan : fp32_;
    search_space space;
    if (settings_.stages == stages::batches_only) {
      space = space_without_losses(candidates_, log_.graph, lows_, settings_.batches_tie, runs_);
    } else {
      const bool pays = best && best->result.seconds < settings_.cut.slower_than_fp32 * baseline_.result.seconds;
      auto made = make_segment_space(log_.graph, candidates_.roles, pays ? best->result.plan : fp32_,
                                     settings_.batches_tie, runs_);
      segments_ = std::move(made.kinds);
      space = std::move(made.space);
    }
    plan found = fp32_;
    run_->timed(stage::batches, [&] { found = race_for(space); });
    return found;
  }

  // What stage 2 has to enumerate is known only after the epochs: too much for its strategy must not waste them.
  plan race_for(const search_space& space) {
    stage_two<evaluator_type> race{*run_, settings_.race};
    try {
      (void)stage2_.start(space);
    } catch (const space_error& e) {
      log_.warnings.push_back(fmt::format("stage 2 was searched by greedy: {}", e.what()));
      return race(strategy::greedy{}, space);
    }
    return race(stage2_, space);
  }

  void hold_final_contest(const plan& found, const std::optional<epoch_type>& best) {
    std::vector<racer> entrants;
    enter(entrants, fp32_, "fp32");
    for (const precision low : lows_) {
      enter(entrants, runs_.applied_to(autocast::rule_plan(policy_, log_.graph, low)),
            fmt::format("rule-based {}", name(low)));
    }
    for (const rival& r : rivals_) enter(entrants, r.plan, r.label);
    stage_two_plan_ = found;
    enter(entrants, found, "comp");
    if (best) enter(entrants, stage_one_plan_ = best->result.plan, "comp stage 1");
    run_->timed(stage::contest, [&] { log_.contest = hold_contest(*run_, settings_.race, std::move(entrants)); });
    for (contestant& c : log_.contest) {
      if (c.plan == fp32_) c.epoch = log_.baseline;
      if (best && c.plan == best->result.plan) c.epoch = best->result.sample;
    }
  }

  // Takes the fastest contestant whose own epoch is accepted; that epoch is training already done.
  void settle(std::optional<epoch_type>& best) {
    for (const std::size_t at : ranking(log_.contest)) {
      contestant& c = log_.contest[at];
      epoch_type epoch = at == 0 ? std::move(baseline_) : epoch_of(c, best);
      c.epoch = epoch.result.sample;
      if (at != 0 && !epoch.result.accepted && settings_.stages != stages::batches_only) {
        log_.warnings.push_back(
            fmt::format("plan {} (\"{}\") was fastest but its epoch was not accepted ({}, loss {:.6g})",
                        shortened(c.plan), c.label, name(epoch.result.sample.status), epoch.result.sample.loss));
        log_.cost(stage::training).seconds -= epoch.result.sample.seconds;  // in vain: a cost of the search
        log_.cost(stage::contest).seconds += epoch.result.sample.seconds;
        continue;
      }
      crown(c, std::move(epoch));
      return;
    }
  }

  epoch_type epoch_of(const contestant& c, std::optional<epoch_type>& best) {
    if (best && c.plan == best->result.plan) return std::move(*best);
    epoch_type epoch;
    run_->timed(stage::training, [&] {
      epoch.result =
          run_->epoch(stage::training, c.plan, c.label,
                      candidate_cut{without_time_limits(), log_.baseline, std::numeric_limits<double>::infinity()});
    });
    if (evaluator_type::restores && !run_->recalled() && epoch.result.sample.ok()) epoch.end = run_->save();
    return epoch;
  }

  early_cut without_time_limits() const {
    early_cut cut = settings_.cut;
    cut.slower_than_fp32 = std::numeric_limits<double>::infinity();
    return cut;
  }

  void crown(const contestant& winner, epoch_type epoch) {
    log_.plan = winner.plan;
    log_.speedup = winner.over_fp32.ratio;
    log_.speedup_bounds = winner.over_fp32.bounds;
    log_.first_epoch = epoch.result.sample;
    log_.fallbacks = conservative_ladder(winner.plan, candidates_.decisions);
    if (epoch.end) {
      run_->restore(*epoch.end);
      log_.trained_epochs = 1;
      if (epoch.result.stage != stage::training) {  // that epoch was counted as search; it is training now
        log_.cost(epoch.result.stage).seconds -= epoch.result.sample.seconds;
        log_.cost(stage::training).seconds += epoch.result.sample.seconds;
      }
    } else {
      run_->to_start();
    }
    trainer_.set_precision(winner.plan);
    const bool searched = winner.plan == stage_two_plan_ || winner.plan == stage_one_plan_;
    log_.reasons = explain(log_, candidates_, segments_, winner.label, searched,
                           searched && winner.plan != stage_two_plan_ ? stage_two_plan_ : plan{});
  }

  static std::string shortened(const plan& p) { return p.size() <= 64 ? p.str() : p.str().substr(0, 61) + "..."; }

  const P& policy_;
  const S1& stage1_;
  const S2& stage2_;
  const search_settings& settings_;
  B& trainer_;
  Observers& observers_;
  evaluator_type* run_ = nullptr;
  outcome log_ = {};
  plan fp32_ = {};
  std::vector<precision> lows_ = {};
  op_support runs_ = {};
  candidate_space candidates_ = {};
  std::vector<rival> rivals_ = {};
  plan stage_one_plan_ = {}, stage_two_plan_ = {};
  std::vector<segment_kind> segments_ = {};
  epoch_type baseline_ = {};
};

}  // namespace comp
