// SPDX-License-Identifier: Apache-2.0
// Runs one search on one trainer. FP32 trains first, as the reference (loss_0 of the paper's algorithm 1). Then the
// default search chooses plans by what operators cost (guided_search.hpp), or the paper's two stages ask the user's
// strategies: plans are judged by their losses in stage 1 and by their times in stage 2 (staged_search.hpp). A contest
// chooses among the found plan, FP32 and the rule-based ones.
// Batches under FP32 and under accepted plans are training and are kept; those of rejected plans are undone. The races
// and the contest of strategies of the user's are undone, too, and of the paper's search everything. A trainer that
// cannot restore its state keeps all, but for what a loop takes back (online.hpp).
// Source: CoMP paper, section 3.
#pragma once

#include <algorithm>
#include <cassert>
#include <comp/core/clock.hpp>
#include <comp/core/linkage.hpp>
#include <comp/policy/advice.hpp>
#include <comp/search/decision/budget.hpp>
#include <comp/search/decision/final_contest.hpp>
#include <comp/search/decision/guided_search.hpp>
#include <comp/search/decision/reasons.hpp>
#include <comp/search/decision/reference_that_fits.hpp>
#include <comp/search/decision/staged_search.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/losses/loss_trials.hpp>
#include <comp/search/losses/sound_state.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/space/spaces.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/trainer/findings.hpp>
#include <comp/search/trainer/signature.hpp>
#include <comp/search/trainer/trainer_check.hpp>
#include <comp/search/training/plan_changes.hpp>
#include <comp/search/two_stage.hpp>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// What a search knows before it trains. What can be refused without a batch is refused here, and the trainer and the
/// policy are checked.
struct search_start {
  /// Throws: `settings_error`, `space_error`, what starting_plans throws; `error` if a search would be pointless.
  search_start(const any_policy& policy, const any_strategy& stage1, const any_strategy& stage2,
               const search_settings& settings, any_trainer& trainer, any_observer& observers)
      : log{empty_outcome(settings, trainer)}, plans{trainer, policy, settings, log} {
    log.batches_per_epoch = trainer.batches_per_epoch();
    if (settings.stages == stages::both) guide = stage1.guide();
    std::size_t candidates = 0;
    if (settings.stages == stages::times_only) {
      (void)stage2.start(
          space_without_losses(plans.candidates(), log.graph, plans.lows(), settings.times_tie, plans.runs()));
    } else if (guide == nullptr) {
      candidates = stage1.start(plans.candidates().space).at_most();
    }
    if (settings.self_check && !search_budget{settings, log.batches_per_epoch, guide != nullptr}.is_too_short())
      checked = detail::check_at_start(trainer, log.graph, policy, plans.fp32());
    require<error>(checked.why_pointless().empty(), "{}", checked.why_pointless());
    log.cost(stage::baseline).seconds += watch.seconds();
    std::vector<std::string> findings = checked.findings();
    if (std::string none = policy::no_faster_precision(log.hardware);
        !none.empty() && log.hardware.kind == device_kind::cuda)
      findings.push_back(std::move(none));  // of a CPU the warning about precisions says it
    if (is_modelled(log.hardware)) {
      findings.push_back(
          fmt::format("all times are {}, and none was measured on one: time the plan there before its "
                      "speedup is relied on",
                      log.hardware.name));
    }
    log.compiled = trainer.run_compiled(false);
    observers.search_started({log.graph, log.hardware, search_signature(trainer, log, settings, checked.first_losses),
                              settings.tolerance,
                              candidates > 0 ? candidates + 2 : 0,  // and one of FP32, and one of the winner
                              &log, [&](std::string sentence) { findings.push_back(std::move(sentence)); }});
    for (const std::string& finding : findings) detail::warn(log, observers, finding);
  }

  const detail::stopwatch watch = {};
  outcome log;
  starting_plans plans;
  const strategy::guided* guide = nullptr;  // the settings of the default strategy; null if the user chose others
  check_report checked = {};

 private:
  static outcome empty_outcome(const search_settings& settings, any_trainer& trainer) {
    settings.check();
    require<settings_error>(trainer.has.validate || settings.criterion != criterion::scores,
                            "plans are to be judged by scores ({}, or choose another criterion",
                            by_language("this backend has no validate()): give it double validate()",
                                        "there is no score): give score=..."));
    outcome log{.graph = trainer.graph(), .hardware = trainer.hardware()};
    log.tolerance = settings.tolerance;
    log.floor = settings.floor;
    log.higher_is_better = settings.direction == loss_direction::higher_is_better;
    log.memory_limit = settings.memory_limit;
    log.criterion = settings.criterion;
    return log;
  }
};

class search_run {
 public:
  /// Keeps references to its arguments.
  search_run(search_start& start, const any_strategy& stage1, const any_strategy& stage2,
             const search_settings& settings, any_trainer& trainer, any_observer& observers)
      : stage1_{stage1},
        stage2_{stage2},
        settings_{settings},
        trainer_{trainer},
        observers_{observers},
        log_{start.log},
        plans_{start.plans},
        guide_{start.guide},
        checked_{start.checked},
        run_{trainer, observers, log_},
        trials_{run_, log_, settings, plans_.fp32(), plans_.smaller()},
        segments_(log_.graph.size(), segment_kind::decided) {}

  /// Fills in the outcome. After an exception the trainer is in FP32, and at the search's start if it can restore that.
  void run() {
    try {
      try {
        search();
      } catch (const damaged_training& damage) {
        end_damaged(damage);
      }
      observers_.search_done(log_);
    } catch (...) {
      run_.restore(trials_.reference().start());
      try {
        trainer_.set_precision(plans_.fp32());
      } catch (...) {  // the caller has to see the first exception
      }
      throw;
    }
  }

 private:
  void search() {
    train_fp32();
    if (budget().is_too_short()) {
      take(sound(look_at_rules()));
    } else if (guide_ != nullptr) {
      guided_search search{session(), *guide_, plans_.where_to_start(judges_states())};
      const comp::plan fastest = search.find();
      const std::size_t winner = hold_contest({fastest, search.allowed(), search.least_memory()}, &search);
      log_.evidence = search.evidence_beside(log_.contest[winner].plan);
      take(winner);
    } else {
      staged_search search{session(), plans_};
      found_plan_ = search.find(stage1_, stage2_);
      if (search.stage_one()) stage_one_plan_ = search.stage_one()->plan;
      segments_ = search.segments();
      if (!settings_.verbatim) {
        take(hold_contest({found_plan_, stage_one_plan_}, nullptr));
      } else {  // the paper takes the plan of stage 2
        enter_untimed(session(), *search.best());
        run_.restore(trials_.reference().start());
        take(log_.contest.size() - 1);
      }
    }
    check_fp32_again();
    find_whether_damaged();
    add_findings();
  }

  // Returns: true if states may be lowered. Their harm grows with the training, so that they stay in FP32 unless a long
  // test from one state can judge them. Warns if the graph has some and they may not.
  bool judges_states() {
    const bool judged = run_.restores() && settings_.criterion == criterion::batch_losses &&
                        settings_.stages != stages::times_only && budget().judges_states();
    const auto state =
        std::find_if(log_.graph.begin(), log_.graph.end(), [](const op_info& op) { return op.is_state; });
    if (!judged && state != log_.graph.end()) {
      warn(fmt::format(
          "\"{}\" and all else that the training keeps from step to step stay in FP32 (their harm grows with the training, "
          "and no test of {} batches from one state can judge it here): plan more epochs, raise {}, and give the trainer "
          "save() and restore()",
          state->name, search_budget::most_for_growing_harm, setting("budget")));
    }
    return judged;
  }

  // Trains FP32, or the most conservative plan that fits in memory.
  void train_fp32() {
    constexpr std::size_t unknown_epoch = 256;
    const std::size_t epoch = log_.batches_per_epoch;
    const std::size_t least =
        budget().is_too_short_for_one() ? 1 : std::clamp<std::size_t>(budget().batches() / 2, 8, 16);
    const std::size_t most = epoch > 0 ? std::max<std::size_t>(epoch, 2 * least) : unknown_epoch;
    run_.timed(stage::baseline, [&] { trials_.begin(least, most, candidates_cut()); });
    if (trials_.reference().plan() != plans_.fp32()) {
      run_.timed(stage::baseline, [&] {
        if (!run_.restores()) return;
        const checkpoint start = trials_.reference().start();
        trials_.reference().replace(
            most_conservative_plan(run_, log_, settings_, plans_.where_to_start(), start, trials_.reference().plan()));
        trials_.begin(least, most, candidates_cut());
      });
      plans_.replace_fp32(trials_.reference().plan());
      warn(fmt::format(
          "FP32 needs more memory than there is: the plan \"{}\" takes its place, is what \"fp32\" stands for, and what losses are "
          "judged against ({} of {} operators are low in it, whose harm {}): make the batch smaller to search against FP32",
          name(plans_.fp32(), log_.graph), plans_.fp32().count_lowered(log_.graph), plans_.fp32().size(),
          run_.restores() ? "was looked for as far as memory allows" : "nobody looked for"));
    }
    if (!run_.last_was_recalled()) {
      warn(detail::problem_of_restore(checked_.first_losses, log_.baseline.curve));
    }
    if (!run_.restores()) {
      log_.warnings.push_back(
          fmt::format("the {} (no batch can be repeated): FP32 and each plan took turns, which tells less and takes "
                      "longer; {}",
                      by_language("backend cannot save and restore its state", "loop gives each batch once"),
                      by_language("give the trainer save() and restore()", "comp.search repeats batches")));
    }
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

  // Returns: the place in the contest of the plan to take. The found plan is then what the contest left of `found`.
  std::size_t hold_contest(std::vector<plan> found, guided_search* guided) {
    std::erase_if(found, [](const plan& p) { return p.empty(); });
    final_contest contest{session(), plans_, budget(), guided};
    const std::size_t winner = sound(contest.hold(std::move(found)));
    found_plan_ = contest.found();
    return winner;
  }

  // For a training that is too short to search in: takes the rule-based plan if one look at its losses and times finds
  // nothing against it, else FP32.
  std::size_t look_at_rules() {
    const plan& fp32 = plans_.fp32();
    log_.compiled = false;  // the times are those of the batches that judge losses
    log_.contest.push_back({.label = std::string{reference_label(log_.graph)}, .plan = fp32, .over_fp32 = {1, {1, 1}}});
    log_.contest.front().seconds = log_.baseline.batch_seconds;
    log_.contest.front().peak_bytes = log_.baseline.peak_bytes;
    const std::vector<racer> racers = plans_.racers(fp32);
    std::size_t winner = 0;
    if (racers.size() > 1 && !budget().is_too_short_for_one()) {
      const racer& rules = racers[1];
      run_.timed(stage::losses, [&] { (void)trials_.judge(rules.plan, rules.label, true); });
      const trial& judged = trials_.known(rules.plan)->trial;
      log_.contest.push_back({.label = rules.label, .plan = rules.plan, .rule_based = rules.rule_based});
      describe_contest(log_, trials_);
      const bool pays = budget().fits_instead(log_.contest.back(), log_.contest.front()) ||
                        judged.bounds.high < trials_.fp32_seconds();
      winner = judged.accepted && pays ? 1 : 0;
    }
    log_.warnings.push_back(
        fmt::format("the training is too short to search in ({} batches; a search takes about {}): {}. More epochs, "
                    "an earlier search's plan in {} or its ledger make a search pay",
                    budget().planned(), batches_of_a_search,
                    winner > 0                        ? "the rule-based plan was looked at, and taken"
                    : budget().is_too_short_for_one() ? "FP32 stays"
                                                      : "the rule-based plan was looked at, and FP32 stays",
                    setting("warm_start")));
    if (winner == 0 && trials_.fp32_end()) run_.restore(*trials_.fp32_end());
    return winner;
  }

  // Ends the search of a training that a plan has damaged, and that cannot be restored.
  void end_damaged(const damaged_training& damage) {
    log_.damaged_since = damage.since;
    warn(damage.what());
    log_.contest.assign(
        1, {.label = std::string{reference_label(log_.graph)}, .plan = plans_.fp32(), .over_fp32 = {1, {1, 1}}});
    take(0);
    log_.run_seconds = run_.seconds();
  }

  // Trains FP32 once more after a run that failed. If FP32 fails, too, the trainer is at fault and not the plan.
  // Throws: `error` with the trainer's message.
  void check_fp32_again() {
    const auto failed = [](const trial& t) { return t.sample.status == status::failed && trains(t.purpose); };
    const auto trains = [&](const trial& t) { return t.sample.ok() && t.plan == plans_.fp32(); };
    const auto last = std::find_if(log_.trials.rbegin(), log_.trials.rend(), failed);
    if (last == log_.trials.rend() || std::any_of(log_.trials.rbegin(), last, trains)) return;
    run_.timed(stage::baseline, [&] {
      const checkpoint here = run_.save();
      require_trained(run_, run_.run_batch(stage::baseline, plans_.fp32(), "fp32 after a run that failed").sample, 0);
      run_.restore(here);
      trainer_.set_precision(log_.plan);
    });
  }

  // If a plan lost the last batches of a trainer that cannot restore its state, FP32 trains on, until a loss is finite.
  // Throws: `damaged_training` if none is.
  void find_whether_damaged() {
    if (!run_.lost_since()) return;
    while (run_.lost_since()) (void)run_.run_batch(stage::baseline, plans_.fp32(), "fp32 after a lost batch");
    trainer_.set_precision(log_.plan);
  }

  // Warns of what makes the result doubtful.
  void add_findings() {
    if (settings_.self_check) {
      for (const std::string& finding : detail::problems_of_ignored_precisions(log_)) warn(finding);
      warn(detail::problem_of_ledger(trainer_, log_, !checked_.first_losses.empty()));
      if (!is_modelled(log_.hardware)) warn(run_.clock().find_contradiction(plans_.fp32()));
      warn(detail::problem_of_learning(log_));
    }
    for (const std::string& finding : detail::problems_of_failed_runs(log_)) warn(finding);
    warn(detail::problem_of_lost_batches(log_, plans_.fp32()));
    warn(detail::problem_of_memory(log_));
    log_.run_seconds = run_.seconds();
  }
  void warn(const detail::problem& found) {
    if (found) detail::warn(log_, observers_, *found);
  }

  search_session session() { return {run_, log_, settings_, trials_}; }
  search_budget budget() const { return {settings_, log_.batches_per_epoch, guide_ != nullptr}; }

  // Returns: true for a plan whose own losses were accepted, for FP32, and for every plan if the settings say so (the
  // paper's search, or one that looks at no losses).
  bool may_win(const plan& p) const {
    const auto* judged = trials_.known(p);
    return p == plans_.fp32() || settings_.stages == stages::times_only || settings_.verbatim ||
           (judged && judged->trial.accepted);
  }

  // Returns: `winner` if the state that the search leaves is sound; else FP32's place in the contest. The trainer is
  // then left after FP32's batches.
  std::size_t sound(std::size_t winner) {
    if (leave_sound(run_, stage::contest, true)) return winner;
    contestant& damaging = log_.contest[winner];
    damaging.status = status::not_finite;
    run_.warn(detail::sentence_of_damage(damaging.label));
    return 0;
  }

  void take(std::size_t index) {
    const contestant& winner = log_.contest[index];
    assert(may_win(winner.plan) && run_.unchecked().from == nullptr);
    if (winner.plan == plans_.fp32()) warn(too_noisy_to_tell(log_));
    log_.plan = winner.plan;
    log_.speedup = winner.plan == plans_.fp32() ? 1 : winner.over_fp32.ratio;
    log_.speedup_bounds = winner.plan == plans_.fp32() ? interval{1, 1} : winner.over_fp32.bounds;
    log_.fallbacks = conservative_plans(winner.plan, plans_.candidates().decisions, plans_.fp32());
    log_.batch_seconds = winner.seconds.empty() ? trials_.fp32_seconds() : median(winner.seconds);
    const bool counts = run_.restores() && !settings_.verbatim && log_.batches_per_epoch > 0;
    // Else the batches are undone: the paper's training begins after its search, and without the length of an epoch
    // nobody could say how much of one is done. A trainer that cannot restore its state keeps them uncounted.
    if (!counts) run_.restore(trials_.reference().start());
    log_.trained = counts ? run_.trained() : sample{};
    log_.trained_batches = static_cast<std::size_t>(log_.trained.batches);
    trainer_.set_precision(winner.plan);
    log_.execution = trainer_.execution();
    for (std::string& remark : budget().remarks(log_, winner)) log_.warnings.push_back(std::move(remark));
    const bool searched = winner.plan == found_plan_ || winner.plan == stage_one_plan_;
    log_.reasons = explain(log_, plans_.candidates(), segments_, winner.label, searched,
                           searched && winner.plan != found_plan_ ? found_plan_ : plan{});
  }

  static constexpr std::size_t batches_of_a_search = 60;  // batches of a search that are not training

  const any_strategy &stage1_, &stage2_;
  const search_settings& settings_;
  any_trainer& trainer_;
  any_observer& observers_;
  outcome& log_;
  starting_plans& plans_;
  const strategy::guided* guide_;
  const check_report& checked_;
  evaluator run_;
  loss_trials trials_;
  std::vector<segment_kind> segments_;
  plan stage_one_plan_ = {}, found_plan_ = {};
};

COMP_INLINE outcome detail::run_search(const any_policy& policy, const any_strategy& stage1, const any_strategy& stage2,
                                       const search_settings& settings, any_trainer& trainer, any_observer& observers) {
  search_start start{policy, stage1, stage2, settings, trainer, observers};
  search_run{start, stage1, stage2, settings, trainer, observers}.run();
  return std::move(start.log);
}

}  // namespace comp
