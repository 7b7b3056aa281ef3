// SPDX-License-Identifier: Apache-2.0
// One search on one trainer: FP32, plans judged by losses, plans judged by times, head-to-head, the winner.
// Batches under FP32 and under accepted plans are training and are kept; only those of rejected plans, and repeats of
// the same batches, are undone. Not here: what a user writes down (two_stage.hpp). Source: CoMP paper, section 3; what
// is added to it: design.md, section 4.
#pragma once

#include <algorithm>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/strategy.hpp>
#include <comp/search/candidate_space.hpp>
#include <comp/search/check.hpp>
#include <comp/search/contest.hpp>
#include <comp/search/entrants.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/fallbacks.hpp>
#include <comp/search/guided_search.hpp>
#include <comp/search/reasons.hpp>
#include <comp/search/segments.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/signature.hpp>
#include <comp/search/staged_search.hpp>
#include <comp/search/trials.hpp>
#include <concepts>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// One search on one trainer. Made by two_stage::run.
template <Backend B, OperatorPolicy P, SearchStrategy S1, SearchStrategy S2, class Observers>
class search_run {
  using evaluator_type = evaluator<B, Observers>;
  using trials_type = loss_trials<evaluator_type>;
  using place = typename evaluator_type::place;

 public:
  search_run(const P& policy, const S1& stage1, const S2& stage2, const search_settings& settings, B& trainer,
             Observers& observers)
      : policy_{on_machine(policy, machine_of(trainer))},
        stage1_{stage1},
        stage2_{stage2},
        settings_{settings},
        trainer_{trainer},
        observers_{observers} {}

  outcome operator()() {
    prepare();
    evaluator_type run{trainer_, observers_, log_};
    run_ = &run;
    trials_type trials{run, log_, settings_, fp32_, smaller_plans()};
    trials_ = &trials;
    try {
      search();
      observers_.search_done(log_);
    } catch (...) {
      run.restore(trials.reference().start());
      throw;
    }
    return std::move(log_);
  }

 private:
  static hardware machine_of(const B& trainer) {
    if constexpr (detail::knows_hardware<B>) return trainer.hardware();
    return {};
  }

  // Everything that can be refused before the first batch is refused here.
  void prepare() {
    settings_.check();
    log_.graph = trainer_.graph();
    log_.tolerance = settings_.tolerance;
    log_.higher_is_better = settings_.direction == loss_direction::higher_is_better;
    log_.memory_limit = settings_.memory_limit;
    log_.criterion = settings_.criterion;
    log_.hardware = machine_of(trainer_);
    log_.precisions = searched_precisions(trainer_, settings_);
    lows_.assign(log_.precisions.begin() + 1, log_.precisions.end());
    if (lows_.empty() && settings_.precisions.empty() && supported_precisions(trainer_).size() > 1) {
      log_.warnings.push_back(
          "nothing was searched: this machine computes no lower precision faster than FP32. Name those that are to be "
          "tried all the same in settings.precisions");
    }
    require<settings_error>(detail::validates<B> || settings_.criterion != criterion::scores,
                            "plans are to be judged by scores (this backend has no validate()): give it "
                            "double validate(), or choose another criterion");
    require<graph_error>(!log_.graph.empty(),
                         "the model has no operators (there is nothing to plan): record a forward first");
    runs_ = op_support{std::as_const(trainer_), log_.graph, lows_};
    candidates_ = make_candidate_space(policy_, log_.graph, log_.hardware, lows_, settings_.epochs_tie, runs_);
    require_supported(candidates_, log_.graph, supported_precisions(trainer_), runs_);
    fp32_ = plan{log_.graph.size()};
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      if (candidates_.decisions[i].fixed && log_.graph[i].choosable)
        fp32_[i] = candidates_.decisions[i].compute;
      else if (log_.graph[i].choosable)
        fp32_[i] = runs_.widest(i);
    }
    rivals_ = rivals_of(settings_.rivals, log_.graph, lows_, supported_precisions(trainer_), runs_);
    for (rival& r : rivals_) r.plan = with_fixed(std::move(r.plan));
    if constexpr (detail::has_autocast<B>) add_autocast();
    if constexpr (detail::counts_batches<B>)
      log_.batches_per_epoch = static_cast<std::size_t>(trainer_.batches_per_epoch());
    guide_ = settings_.stages == stages::both ? strategy::guide_of(stage1_) : nullptr;
    std::size_t candidates = 0;
    if (settings_.stages == stages::batches_only) {
      (void)stage2_.start(space_without_losses(candidates_, log_.graph, lows_, settings_.batches_tie, runs_));
    } else if (guide_ == nullptr) {
      candidates = most_plans(stage1_.start(candidates_.space));
    }
    segments_.assign(log_.graph.size(), segment_kind::decided);
    if (settings_.self_check) checked_ = detail::check_at_start(trainer_, log_.graph, policy_, fp32_);
    require<error>(checked_.why_pointless().empty(), "{}", checked_.why_pointless());
    log_.cost(stage::baseline).seconds += checked_.seconds;
    const search_info info{log_.graph,
                           log_.hardware,
                           search_signature(trainer_, log_, settings_, checked_.first_losses),
                           settings_.tolerance,
                           candidates > 0 ? candidates + 2 : 0,  // and FP32's, and the winner's
                           &log_};
    observers_.search_started(info);
    for (const std::string& finding : checked_.findings()) warn(finding);
  }

  // For what should be known before the search ends.
  void warn(const std::string& sentence) {
    log_.warnings.push_back(sentence);
    observers_.warned(sentence);
  }

  // The backend's own autocast, run by itself: no model of it that may be slower, or lower something else.
  void add_autocast() {
    for (const precision low : lows_) {
      if (low != precision::bf16 && low != precision::fp16) continue;
      try {
        plan real = trainer_.own_autocast(low);
        require_fits(real, log_.graph);
        const plan by_operators = real.as_autocast(false);
        require<error>(with_fixed(by_operators) == by_operators,
                       "it gives operators another precision than the policy");
        if (real.count_low() > 0)
          rivals_.push_back({fmt::format("rule-based autocast {}", name(low)), std::move(real)});
      } catch (const std::exception& e) {
        log_.warnings.push_back(fmt::format("the backend's own autocast to {} was no rival: {}", name(low), e.what()));
      }
    }
  }

  // An operator that the policy fixes is fixed in every plan, and none is asked to run in what it lacks.
  plan with_fixed(plan p) const {
    p = runs_.applied_to(std::move(p));
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (candidates_.decisions[i].fixed) p[i] = fp32_[i];
    }
    return p;
  }

  // What the most conservative plan becomes where it needs more memory than there is.
  std::vector<plan> smaller_plans() const {
    std::vector<plan> plans;
    for (const precision low : lows_) plans.push_back(rule(low));
    for (const precision low : lows_) {
      plan all = fp32_;
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (log_.graph[i].choosable) all[i] = low;
      }
      plans.push_back(with_fixed(std::move(all)));
    }
    std::erase(plans, fp32_);
    return plans;
  }

  template <class Run>
  static std::size_t most_plans(const Run& run) {
    if constexpr (requires {
                    { run.at_most() } -> std::convertible_to<std::size_t>;
                  })
      return run.at_most();
    return 0;
  }

  void search() {
    constexpr std::size_t unknown_epoch = 256;
    const std::size_t epoch = log_.batches_per_epoch;
    const std::size_t least = budget_batches() / 2 < 16 ? std::max<std::size_t>(budget_batches() / 2, 8) : 16;
    run_->timed(stage::baseline, [&] {
      trials_->begin(least, epoch > 0 ? std::max<std::size_t>(epoch, 2 * least) : unknown_epoch, candidates_cut());
    });
    if (trials_->reference().plan() != fp32_) {
      fp32_ = trials_->reference().plan();
      log_.warnings.push_back(
          fmt::format("FP32 needs more memory than there is: plan {} takes its place, and is what \"fp32\" stands for",
                      shortened(fp32_)));
    }
    if (!run_->recalled()) {
      if (const auto wrong = detail::problem_of_restore(checked_.first_losses, log_.baseline.curve)) warn(*wrong);
    }
    if (trials_->by_epochs() && log_.batches_per_epoch == 0)
      log_.batches_per_epoch = static_cast<std::size_t>(log_.baseline.batches);
    if (!evaluator_type::restores) {
      log_.warnings.push_back(
          "the backend cannot save and restore its state: each candidate starts from the weights that the last one left");
    }
    if (guide_ != nullptr) {
      guided();
    } else {
      staged();
    }
    if (settings_.self_check) {
      for (const std::string& finding : detail::findings_afterwards<B>(log_, checked_)) warn(finding);
    }
    log_.run_seconds = run_->seconds();
  }

  // A question of a guided search is about losses: a plan of few low operators may be slow by its casts.
  early_cut candidates_cut() const {
    early_cut cut = settings_.cut;
    if (guide_ == nullptr) return cut;
    cut.slower_than_fp32 = std::max(4.0, cut.slower_than_fp32);
    cut.slower_than_best = std::numeric_limits<double>::infinity();
    return cut;
  }

  guided_start where_to_start() {
    guided_start from{.decisions = candidates_.decisions, .lows = lows_, .batches_per_epoch = log_.batches_per_epoch};
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      std::vector<precision>& levels = from.levels.emplace_back(1, fp32_[i]);
      if (!log_.graph[i].choosable || candidates_.decisions[i].fixed) continue;
      for (const precision low : lows_) {
        if (low != fp32_[i] && runs_(i, low)) levels.push_back(low);
      }
    }
    for (const precision low : lows_) from.rules.push_back(rule(low));
    for (const rival& r : rivals_) from.rules.push_back(r.plan.as_autocast(false));
    if (settings_.warm_start.size() == fp32_.size()) {
      from.rules.push_back(with_fixed(settings_.warm_start.as_autocast(false)));
    } else if (!settings_.warm_start.empty()) {
      log_.warnings.push_back(fmt::format("the earlier plan was not used: it has {} operators, this model {}",
                                          settings_.warm_start.size(), fp32_.size()));
    }
    return from;
  }

  void guided() {
    guided_search<evaluator_type> search{*run_, log_, settings_, *guide_, *trials_, where_to_start()};
    stage_two_plan_ = search();
    std::vector<racer> entrants = all_entrants(stage_two_plan_);
    if (search.allowed() != stage_two_plan_) enter(entrants, search.allowed(), "comp, all that is accepted");
    if (!search.least_memory().empty()) enter(entrants, search.least_memory(), "comp, least memory");
    run_->timed(stage::contest, [&] {
      const std::vector<racer> refused = take_refused(entrants, search);
      if (entrants.size() > 1) {
        log_.contest = hold_contest(*run_, contest_settings(), std::move(entrants),
                                    {.trains = true, .same_batches = trials_->lengths_differ()});
      } else {
        log_.contest.push_back({.label = "fp32", .plan = fp32_, .over_fp32 = {1, {1, 1}}});
      }
      if (log_.contest.front().peak_bytes == 0) log_.contest.front().peak_bytes = log_.baseline.peak_bytes;
      for (const racer& r : refused) log_.contest.push_back({.label = r.label, .plan = r.plan});
    });
    describe_contest(log_, *trials_);
    const auto order = ranking(
        log_.contest, [&](const plan& p) { return search.predicted(p); }, settings_.memory_limit, settings_.slowdown);
    const auto wins = [&](std::size_t at) {
      contestant& c = log_.contest[at];
      const bool pays = settings_.slowdown > 0 || (c.over_fp32.ratio > 1 && !undecided(c));
      return at == 0 || (pays && (is_tight() || keeps_the_loss(c)));
    };
    const auto first = std::find_if(order.begin(), order.end(), wins);
    const std::size_t winner = first == order.end() ? 0 : *first;
    if (winner == 0 && run_->trained().batches == 0 && trials_->fp32_end()) run_->restore(*trials_->fp32_end());
    crown(log_.contest[winner]);
  }

  // Neither the contest nor the batches that judged its losses say that it is faster.
  bool undecided(const contestant& c) const {
    const auto* judged = trials_->known(c.plan);
    const bool clear =
        judged != nullptr && judged->trial.accepted && judged->trial.bounds.high < trials_->fp32_seconds();
    return too_noisy(c) && !clear;
  }

  // Takes out whose losses were not accepted, or are not known and cost too much to judge. The state stays.
  std::vector<racer> take_refused(std::vector<racer>& entrants, const guided_search<evaluator_type>& search) {
    const place here = run_->save();
    std::vector<racer> taken;
    for (auto r = entrants.begin() + 1; r != entrants.end();) {
      if (search.covers(r->plan) || (search.may_go_on() && (*trials_)(r->plan, r->label).trial.accepted)) {
        ++r;
      } else {
        taken.push_back(std::move(*r));
        r = entrants.erase(r);
      }
    }
    run_->restore(here);
    run_->keep();
    return taken;
  }

  // Too little may be spent for what only makes sure.
  bool is_tight() const { return budget_batches() < 60; }

  // No more of the training than a twentieth; FP32 need not run again in a short one where pairs with it are known.
  race_settings contest_settings() const {
    race_settings chosen = settings_.race;
    if (log_.batches_per_epoch > 0) {
      const std::size_t most = settings_.planned_epochs * log_.batches_per_epoch / 40;
      chosen.contest_rounds = std::clamp(most, chosen.min_rounds, chosen.contest_rounds);
    }
    if (!is_tight()) return chosen;
    const auto* pairs = trials_->known(stage_two_plan_);
    const bool known = pairs != nullptr && pairs->trial.sample.batch_seconds.size() > chosen.min_rounds;
    chosen.fp32_rounds = known ? 0 : chosen.min_rounds;
    return chosen;
  }

  // A part of an accepted plan is expected to train; the one that is crowned is looked at. The state stays.
  bool keeps_the_loss(contestant& c) {
    if (trials_->known(c.plan) != nullptr) return trials_->known(c.plan)->trial.accepted;
    run_->timed(stage::contest, [&] {
      const place here = run_->save();
      (void)(*trials_)(c.plan, c.label, true);
      run_->restore(here);
      run_->keep();
    });
    const auto& judged = *trials_->known(c.plan);
    c.loss = judged.verdict;
    c.loss_batches = static_cast<std::size_t>(judged.trial.sample.batches);
    if (judged.trial.accepted) return true;
    log_.warnings.push_back(
        fmt::format("plan {} (\"{}\") was fastest, but its losses were not accepted although it lowers less "
                    "than a plan whose were",
                    shortened(c.plan), c.label));
    return false;
  }

  // What the search may cost, in batches of the training; many where it is not known how long that is.
  std::size_t budget_batches() const {
    if (log_.batches_per_epoch == 0 || guide_ == nullptr) return 1000;
    const auto planned = static_cast<double>(settings_.planned_epochs * log_.batches_per_epoch);
    return static_cast<std::size_t>(std::min(settings_.budget * planned, 1e6));
  }

  // The paper's two stages with strategies of the user's.
  void staged() {
    staged_search<evaluator_type> search{*run_, log_, settings_, *trials_, candidates_, lows_, runs_};
    stage_two_plan_ = search(stage1_, stage2_);
    segments_ = search.segments();
    std::vector<racer> entrants = all_entrants(stage_two_plan_);
    if (search.stage_one_trial()) enter(entrants, stage_one_plan_ = search.stage_one_trial()->plan, "comp stage 1");
    run_->timed(stage::contest, [&] {
      log_.contest = hold_contest(*run_, settings_.race, std::move(entrants),
                                  {.trains = false, .same_batches = trials_->lengths_differ()});
    });
    describe_contest(log_, *trials_);
    const auto order = ranking(
        log_.contest, [](const plan&) { return std::numeric_limits<double>::quiet_NaN(); }, settings_.memory_limit,
        settings_.slowdown);
    for (const std::size_t at : order) {
      contestant& c = log_.contest[at];
      if (settings_.slowdown == 0 && undecided(c)) continue;
      if (at == 0) {
        run_->restore(trials_->fp32_end().value_or(trials_->reference().start()));
        return crown(c);
      }
      if (settings_.stages == stages::batches_only) {
        run_->restore(trials_->reference().start());
        return crown(c);
      }
      const auto& judged = [&]() -> const auto& {
        const typename trials_type::result* r = nullptr;
        run_->timed(stage::contest, [&] { r = &(*trials_)(c.plan, c.label); });
        return *r;
      }
      ();
      describe(c, log_, *trials_);
      if (judged.trial.accepted) {
        run_->restore(judged.end ? *judged.end : trials_->reference().start());
        return crown(c);
      }
      log_.warnings.push_back(
          fmt::format("plan {} (\"{}\") was fastest but its losses were not accepted ({}, loss {:.6g})",
                      shortened(c.plan), c.label, name(judged.trial.sample.status), judged.trial.sample.loss));
    }
  }

  plan rule(precision low) const { return with_fixed(autocast::rule_plan(policy_, log_.graph, low)); }

  std::vector<racer> all_entrants(const plan& found) const {
    std::vector<racer> entrants;
    enter(entrants, fp32_, "fp32");
    for (const precision low : lows_) enter(entrants, rule(low), fmt::format("rule-based {}", name(low)));
    for (const rival& r : rivals_) enter(entrants, r.plan, r.label);
    enter(entrants, found, "comp");
    return entrants;
  }

  void crown(const contestant& winner) {
    const auto noise = winner.plan == fp32_ ? too_noisy_to_tell(log_.contest) : std::nullopt;
    if (noise) warn(*noise);
    log_.plan = winner.plan;
    log_.speedup = winner.plan == fp32_ ? 1 : winner.over_fp32.ratio;
    log_.speedup_bounds = winner.plan == fp32_ ? interval{1, 1} : winner.over_fp32.bounds;
    log_.fallbacks = conservative_ladder(winner.plan, candidates_.decisions, fp32_);
    log_.batch_seconds = winner.seconds.empty() ? trials_->fp32_seconds() : median(winner.seconds);
    const bool counts = evaluator_type::restores && log_.batches_per_epoch > 0;
    if (!counts) run_->restore(trials_->reference().start());  // how far an epoch is would not be known
    log_.trained = counts ? run_->trained() : sample{};
    log_.trained_batches = static_cast<std::size_t>(log_.trained.batches);
    trainer_.set_precision(winner.plan);
    if constexpr (detail::says_execution<B>) log_.execution = trainer_.execution();
    const std::size_t planned = settings_.planned_epochs * log_.batches_per_epoch;
    if (planned > 0 && log_.trained_batches > planned) {
      log_.warnings.push_back(
          fmt::format("the search trained {} batches (the training was planned to have {}: too few to search in): "
                      "load the plan and train anew, or plan more epochs",
                      log_.trained_batches, planned));
    }
    if (settings_.memory_limit > 0 && winner.peak_bytes > settings_.memory_limit) {
      log_.warnings.push_back(
          fmt::format("memory limit of {} bytes (the plan that won needs {}, and none that is accepted fits): "
                      "raise it, or make the batch smaller",
                      settings_.memory_limit, winner.peak_bytes));
    }
    const bool searched = winner.plan == stage_two_plan_ || winner.plan == stage_one_plan_;
    log_.reasons = explain(log_, candidates_, segments_, winner.label, searched,
                           searched && winner.plan != stage_two_plan_ ? stage_two_plan_ : plan{});
  }

  static std::string shortened(const plan& p) { return p.size() <= 64 ? p.str() : p.str().substr(0, 61) + "..."; }

  const P policy_;
  const S1& stage1_;
  const S2& stage2_;
  const search_settings& settings_;
  B& trainer_;
  Observers& observers_;
  evaluator_type* run_ = nullptr;
  trials_type* trials_ = nullptr;
  const strategy::guided* guide_ = nullptr;
  outcome log_ = {};
  check_report checked_ = {};
  plan fp32_ = {};
  std::vector<precision> lows_ = {};
  op_support runs_ = {};
  candidate_space candidates_ = {};
  std::vector<rival> rivals_ = {};
  plan stage_one_plan_ = {}, stage_two_plan_ = {};
  std::vector<segment_kind> segments_ = {};
};

}  // namespace comp
