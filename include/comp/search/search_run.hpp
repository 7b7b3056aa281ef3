// SPDX-License-Identifier: Apache-2.0
// Runs one search on one trainer: FP32 as the reference, stage 1 (plans judged by losses), stage 2 (plans judged by
// times), the contest, and the winner. Batches under FP32 and under accepted plans are training and are kept; only
// batches of rejected plans, and repeats of the same batches, are undone.
// Not here: what a user writes down (two_stage.hpp). Source: CoMP paper, section 3.
#pragma once

#include <algorithm>
#include <cassert>
#include <comp/core/clock.hpp>
#include <comp/core/linkage.hpp>
#include <comp/policy/advice.hpp>
#include <comp/search/convergence/loss_trials.hpp>
#include <comp/search/convergence/sound_state.hpp>
#include <comp/search/decision/guided_contest.hpp>
#include <comp/search/decision/guided_search.hpp>
#include <comp/search/decision/paper_stages.hpp>
#include <comp/search/decision/reasons.hpp>
#include <comp/search/decision/room_for_fp32.hpp>
#include <comp/search/decision/search_budget.hpp>
#include <comp/search/decision/session.hpp>
#include <comp/search/decision/staged_contest.hpp>
#include <comp/search/decision/staged_search.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/decision/winner.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/space/segments.hpp>
#include <comp/search/timing/contest.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/trainer/findings.hpp>
#include <comp/search/trainer/signature.hpp>
#include <comp/search/trainer/trainer_check.hpp>
#include <comp/search/training/fallbacks.hpp>
#include <comp/search/two_stage.hpp>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// One search on one trainer; two_stage::run makes it.
class search_run {
 public:
  search_run(any_policy policy, const any_strategy& stage1, const any_strategy& stage2, const search_settings& settings,
             any_trainer& trainer, any_observer& observers)
      : stage1_{stage1},
        stage2_{stage2},
        settings_{settings},
        trainer_{trainer},
        observers_{observers},
        log_{begun(settings, trainer)},
        plans_{trainer, policy, settings, log_},
        segments_(log_.graph.size(), segment_kind::decided) {
    prepare(policy);
  }

  outcome run() {
    evaluator run{trainer_, observers_, log_};
    run_ = &run;
    loss_trials trials{run, log_, settings_, plans_.fp32(), plans_.smaller()};
    trials_ = &trials;
    try {
      try {
        search();
      } catch (const spoilt_training& spoilt) {
        end_spoilt(spoilt);
      }
      observers_.search_done(log_);
    } catch (...) {
      run.restore(trials.reference().start());
      to_fp32();
      throw;
    }
    return std::move(log_);
  }

 private:
  // Sets FP32 after an exception. What set_precision() throws is dropped, because the caller has to see the first one.
  void to_fp32() {
    try {
      trainer_.set_precision(plans_.fp32());
    } catch (...) {
    }
  }

  // Returns: an outcome with the model, the machine and the settings. Throws: `settings_error`.
  static outcome begun(const search_settings& settings, any_trainer& trainer) {
    settings.check();
    require<settings_error>(trainer.has.validate || settings.criterion != criterion::scores,
                            "plans are to be judged by scores (this backend has no validate()): give it "
                            "double validate(), or choose another criterion");
    outcome log{.graph = trainer.graph(), .hardware = trainer.hardware()};
    log.tolerance = settings.tolerance;
    log.higher_is_better = settings.direction == loss_direction::higher_is_better;
    log.memory_limit = settings.memory_limit;
    log.criterion = settings.criterion;
    return log;
  }

  void prepare(const any_policy& policy) {
    log_.batches_per_epoch = trainer_.batches_per_epoch();
    if (settings_.stages == stages::both) guide_ = stage1_.guide();
    std::size_t candidates = 0;
    if (settings_.stages == stages::batches_only) {
      (void)stage2_.start(
          space_without_losses(plans_.candidates(), log_.graph, plans_.lows(), settings_.batches_tie, plans_.runs()));
    } else if (guide_ == nullptr) {
      candidates = stage1_.start(plans_.candidates().space).at_most();
    }
    if (settings_.self_check && !budget().is_too_short())
      checked_ = detail::check_at_start(trainer_, log_.graph, policy, plans_.fp32());
    require<error>(checked_.why_pointless().empty(), "{}", checked_.why_pointless());
    log_.cost(stage::baseline).seconds += watch_.seconds();
    std::vector<std::string> findings = checked_.findings();
    if (std::string none = policy::no_faster_precision(log_.hardware); !none.empty())
      findings.push_back(std::move(none));
    if (is_modelled(log_.hardware)) {
      findings.push_back(
          fmt::format("all times are {}, and none was measured on one: time the plan there before its "
                      "speedup is relied on",
                      log_.hardware.name));
    }
    log_.compiled = trainer_.run_compiled(false);
    const search_info info{log_.graph,
                           log_.hardware,
                           search_signature(trainer_, log_, settings_, checked_.first_losses),
                           settings_.tolerance,
                           candidates > 0 ? candidates + 2 : 0,  // and one of FP32, and one of the winner
                           &log_,
                           [&](std::string sentence) { findings.push_back(std::move(sentence)); }};
    observers_.search_started(info);
    for (const std::string& finding : findings) warn(finding);
  }

  // Ends the search of a training that a plan has spoilt, and that cannot be restored.
  void end_spoilt(const spoilt_training& spoilt) {
    log_.spoilt_since = spoilt.since;
    warn(spoilt.what());
    log_.contest.assign(1, {.label = "fp32", .plan = plans_.fp32(), .over_fp32 = {1, {1, 1}}});
    crown(0);
    log_.run_seconds = run_->seconds();
  }

  void warn(const detail::problem& found) {
    if (found) detail::warn(log_, observers_, *found);
  }

  void search() {
    constexpr std::size_t unknown_epoch = 256;
    const std::size_t epoch = log_.batches_per_epoch;
    const std::size_t least =
        budget().is_too_short_for_one() ? 1 : std::clamp<std::size_t>(budget().batches() / 2, 8, 16);
    const std::size_t most = epoch > 0 ? std::max<std::size_t>(epoch, 2 * least) : unknown_epoch;
    run_->timed(stage::baseline, [&] { trials_->begin(least, most, candidates_cut()); });
    if (trials_->reference().plan() != plans_.fp32()) {
      run_->timed(stage::baseline, [&] {
        if (!run_->restores()) return;
        const checkpoint start = trials_->reference().start();
        trials_->reference().replace(most_conservative_plan(*run_, log_, settings_, plans_.where_to_start(), start,
                                                            trials_->reference().plan()));
        trials_->begin(least, most, candidates_cut());
      });
      plans_.replace_fp32(trials_->reference().plan());
      warn(fmt::format(
          "FP32 needs more memory than there is: the plan \"{}\" takes its place, is what \"fp32\" stands for, and what losses are "
          "judged against ({} of {} operators are low in it, whose harm {}): make the batch smaller to search against FP32",
          name(plans_.fp32(), log_.graph), plans_.fp32().count_low(), plans_.fp32().size(),
          run_->restores() ? "was looked for as far as memory allows" : "nobody looked for"));
    }
    if (!run_->last_was_recalled()) {
      warn(detail::problem_of_restore(checked_.first_losses, log_.baseline.curve));
    }
    if (!run_->restores()) {
      log_.warnings.push_back(
          "the backend cannot save and restore its state (no batch can be repeated): FP32 and each plan took turns, which "
          "tells less and takes longer; give the trainer save() and restore()");
    }
    if (budget().is_too_short()) {
      look_at_rules();
    } else if (settings_.verbatim) {
      by_paper();
    } else if (guide_ != nullptr) {
      guided();
    } else {
      staged();
    }
    check_fp32_again();
    find_whether_spoilt();
    if (settings_.self_check) {
      for (const std::string& finding : detail::problems_of_ignored_precisions(log_)) warn(finding);
      warn(detail::problem_of_ledger(trainer_, log_, !checked_.first_losses.empty()));
      if (!is_modelled(log_.hardware)) warn(run_->clock().find_contradiction(plans_.fp32()));
      warn(detail::problem_of_learning(log_));
    }
    for (const std::string& finding : detail::problems_of_failed_runs(log_)) warn(finding);
    warn(detail::problem_of_lost_batches(log_, plans_.fp32()));
    warn(detail::problem_of_memory(log_));
    log_.run_seconds = run_->seconds();
  }

  // Trains FP32 once more after a run that failed. If FP32 fails, too, the trainer is at fault and not the plan.
  // Throws: `error` with the trainer's message.
  void check_fp32_again() {
    const auto failed = [](const trial& t) { return t.sample.status == status::failed && t.repeat < profile_repeats; };
    const auto trains = [&](const trial& t) { return t.sample.ok() && t.plan == plans_.fp32(); };
    const auto last = std::find_if(log_.trials.rbegin(), log_.trials.rend(), failed);
    if (last == log_.trials.rend() || std::any_of(log_.trials.rbegin(), last, trains)) return;
    run_->timed(stage::baseline, [&] {
      const checkpoint here = run_->save();
      require_trained(*run_, run_->run_batch(stage::baseline, plans_.fp32(), "fp32 after a run that failed").sample, 0);
      run_->restore(here);
      trainer_.set_precision(log_.plan);
    });
  }

  // If a plan lost the last batches of a trainer that cannot restore its state, FP32 trains on, until a loss is finite.
  // Throws: `spoilt_training` if none is.
  void find_whether_spoilt() {
    if (!run_->lost_since()) return;
    while (run_->lost_since()) (void)run_->run_batch(stage::baseline, plans_.fp32(), "fp32 after a lost batch");
    trainer_.set_precision(log_.plan);
  }

  // Returns: when a candidate is cut. A guided search asks about losses, and a plan with few low operators may be slow
  // because of its casts, so slowness hardly ever cuts one.
  early_cut candidates_cut() const {
    early_cut cut = settings_.cut;
    if (guide_ == nullptr) return cut;
    cut.slower_than_fp32 = std::max(4.0, cut.slower_than_fp32);
    cut.slower_than_best = std::numeric_limits<double>::infinity();
    return cut;
  }

  void guided() {
    guided_search search{session(), *guide_, plans_.where_to_start()};
    guided_contest contest{session(), plans_, budget(), search};
    const std::size_t winner = sound(contest.hold(search.find()));
    stage_two_plan_ = contest.found();
    log_.evidence = search.evidence_beside(log_.contest[winner].plan);
    crown(winner);
  }

  // Runs the paper's two stages with strategies that the user chose.
  void staged() {
    const guided_start from = plans_.where_to_start();
    staged_search search{session(), plans_.candidates(), from, plans_.runs()};
    stage_two_plan_ = search.find(stage1_, stage2_);
    segments_ = search.segments();
    std::vector<racer> racers = plans_.racers(stage_two_plan_);
    if (search.stage_one_trial()) {
      stage_one_plan_ = search.stage_one_trial()->plan;
      enter_found(racers, stage_one_plan_, log_.graph);
    }
    crown(sound(staged_contest{session(), budget()}.hold(std::move(racers))));
  }

  // Runs the paper's two stages to the letter, without a contest: the plan of stage 2 is taken.
  void by_paper() {
    paper_stages search{session(), plans_};
    stage_two_plan_ = search.find(stage1_, stage2_);
    stage_one_plan_ = search.stage_one_plan();
    segments_ = search.segments();
    run_->restore(trials_->reference().start());
    crown(log_.contest.size() - 1);
  }

  // Decides for a training that is too short to search in: takes the rule-based plan where one look at its losses and
  // times finds nothing against it, else FP32.
  void look_at_rules() {
    const plan& fp32 = plans_.fp32();
    log_.compiled = false;  // the times are those of the batches that judge losses
    log_.contest.push_back({.label = "fp32", .plan = fp32, .over_fp32 = {1, {1, 1}}});
    log_.contest.front().seconds = log_.baseline.batch_seconds;
    log_.contest.front().peak_bytes = log_.baseline.peak_bytes;
    const std::vector<racer> racers = plans_.racers(fp32);
    std::size_t winner = 0;
    if (racers.size() > 1 && !budget().is_too_short_for_one()) {
      const racer& rules = racers[1];
      run_->timed(stage::epochs, [&] { (void)trials_->judge(rules.plan, rules.label, true); });
      const trial& judged = trials_->known(rules.plan)->trial;
      log_.contest.push_back({.label = rules.label, .plan = rules.plan, .rule_based = rules.rule_based});
      describe_contest(log_, *trials_);
      const bool pays = winner_choice{session(), budget()}.fits_instead(log_.contest.back()) ||
                        judged.bounds.high < trials_->fp32_seconds();
      winner = judged.accepted && pays ? 1 : 0;
    }
    log_.warnings.push_back(
        fmt::format("the training is too short to search in ({} batches; a search takes about {}): {}. More epochs, "
                    "an earlier search's plan in settings.warm_start or its ledger make a search pay",
                    budget().planned(), batches_of_a_search,
                    winner > 0                        ? "the rule-based plan was looked at, and taken"
                    : budget().is_too_short_for_one() ? "FP32 stays"
                                                      : "the rule-based plan was looked at, and FP32 stays"));
    if (winner == 0 && trials_->fp32_end()) run_->restore(*trials_->fp32_end());
    crown(sound(winner));
  }

  search_session session() { return {*run_, log_, settings_, *trials_}; }
  search_budget budget() const { return {settings_, log_.batches_per_epoch, guide_ != nullptr}; }

  // Returns: true for a plan whose own losses were accepted, for FP32, and where the search was told to look at no
  // losses.
  bool may_win(const plan& p) const {
    const auto* judged = trials_->known(p);
    return p == plans_.fp32() || settings_.stages == stages::batches_only || settings_.verbatim ||
           (judged && judged->trial.accepted);
  }

  // Returns: `winner` if the state that the search leaves is sound; else FP32's place in the contest. The trainer is
  // then left after FP32's batches.
  std::size_t sound(std::size_t winner) {
    if (leave_sound(*run_, stage::contest, true)) return winner;
    contestant& spoiling = log_.contest[winner];
    spoiling.status = status::not_finite;
    run_->warn(detail::sentence_of_spoiling(spoiling.label));
    return 0;
  }

  void crown(std::size_t index) {
    const contestant& winner = log_.contest[index];
    assert(may_win(winner.plan) && run_->unchecked().from == nullptr);
    if (winner.plan == plans_.fp32()) warn(too_noisy_to_tell(log_.contest));
    log_.plan = winner.plan;
    log_.speedup = winner.plan == plans_.fp32() ? 1 : winner.over_fp32.ratio;
    log_.speedup_bounds = winner.plan == plans_.fp32() ? interval{1, 1} : winner.over_fp32.bounds;
    log_.fallbacks = conservative_ladder(winner.plan, plans_.candidates().decisions, plans_.fp32());
    log_.batch_seconds = winner.seconds.empty() ? trials_->fp32_seconds() : median(winner.seconds);
    const bool counts = run_->restores() && !settings_.verbatim && log_.batches_per_epoch > 0;
    // Nobody could say how much of an epoch is done, so the search's batches are undone.
    if (!counts) run_->restore(trials_->reference().start());
    log_.trained = counts ? run_->trained() : sample{};
    log_.trained_batches = static_cast<std::size_t>(log_.trained.batches);
    trainer_.set_precision(winner.plan);
    log_.execution = trainer_.execution();
    for (std::string& remark : budget().remarks(log_, winner)) log_.warnings.push_back(std::move(remark));
    const bool searched = winner.plan == stage_two_plan_ || winner.plan == stage_one_plan_;
    log_.reasons = explain(log_, plans_.candidates(), segments_, winner.label, searched,
                           searched && winner.plan != stage_two_plan_ ? stage_two_plan_ : plan{});
  }

  static constexpr std::size_t batches_of_a_search = 60;  // batches of a search that are not training

  const detail::stopwatch watch_;
  const any_strategy &stage1_, &stage2_;
  const search_settings& settings_;
  any_trainer& trainer_;
  any_observer& observers_;
  outcome log_;
  starting_plans plans_;
  evaluator* run_ = nullptr;
  loss_trials* trials_ = nullptr;
  const strategy::guided* guide_ = nullptr;
  check_report checked_ = {};
  plan stage_one_plan_ = {}, stage_two_plan_ = {};
  std::vector<segment_kind> segments_;
};

COMP_INLINE outcome detail::run_search(const any_policy& policy, const any_strategy& stage1, const any_strategy& stage2,
                                       const search_settings& settings, any_trainer& trainer, any_observer& observers) {
  return search_run{policy, stage1, stage2, settings, trainer, observers}.run();
}

}  // namespace comp
