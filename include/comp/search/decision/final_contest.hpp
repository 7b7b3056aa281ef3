// SPDX-License-Identifier: Apache-2.0
// The contest at the end of a search: FP32, every rule-based plan, the rivals and the plans that the search found are
// timed in turns, and the fastest whose own losses are accepted is taken. A rule-based plan is what a user has without
// a search (torch.autocast), so the found plan wins only if the contest or the learned costs show that it is faster.
// The plans of a guided search consist of accepted operators, so that the contest's batches are training. It is not
// known whether the plans of other strategies train; their batches are undone.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/clock.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/decision/budget.hpp>
#include <comp/search/decision/guided_search.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/times/contest.hpp>
#include <comp/search/times/race.hpp>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace comp {

/// Returns: the index of the rule-based plan with the shortest batches among those that ran, were not rejected and meet
/// `may_win`; nothing if there is none.
std::optional<std::size_t> fastest_rules(const std::vector<contestant>& contest, auto may_win) {
  std::optional<std::size_t> best;
  for (std::size_t i = 1; i < contest.size(); ++i) {
    const contestant& c = contest[i];
    if (!c.rule_based || c.status != status::ok || c.seconds.empty() || detail::is_rejected(c) || !may_win(c)) continue;
    if (!best || compare_paired(contest[*best].seconds, c.seconds).ratio > 1) best = i;
  }
  return best;
}

/// Returns: how many times as fast as `rules` the plan `found` is. `paired`: both have run in the same rounds, which
/// are used. If these leave it open, the two run further rounds in turns, as many as a contest has at most.
inline paired_speedup gain_over_rules(evaluator& run, const race_settings& settings, const contestant& found,
                                      const contestant& rules, bool paired, race_batches batches) {
  std::vector<double> of_found, of_rules;
  if (paired) {
    const std::size_t rounds = std::min(found.seconds.size(), rules.seconds.size());
    of_found.assign(found.seconds.begin(), found.seconds.begin() + static_cast<std::ptrdiff_t>(rounds));
    of_rules.assign(rules.seconds.begin(), rules.seconds.begin() + static_cast<std::ptrdiff_t>(rounds));
  }
  paired_speedup gain = compare_paired(of_rules, of_found);
  for (std::size_t rounds_added = 0; rounds_added < settings.contest_rounds; rounds_added += settings.min_rounds) {
    if (gain.clearly_faster() || gain.clearly_slower()) break;
    std::vector<racer> two{{.plan = rules.plan, .label = rules.label}, {.plan = found.plan, .label = found.label}};
    race{run, stage::contest, settings, settings.min_rounds, batches}.run(two);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    // The rule-based plan no longer trains.
    if (two[0].status != status::ok) return {.ratio = infinity, .bounds = {infinity, infinity}};
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
      "when nothing else runs on the machine, or with a higher {}",
      rules.label, rules.over_fp32.bounds.low, rules.over_fp32.bounds.high,
      by_language("settings.race.fp32_rounds", "race={\"fp32_rounds\": ...}"));
}

/// Returns: the warning for a rule-based plan that is kept although the found one looks faster.
inline std::string why_rules_are_kept(const contestant& found, const contestant& rules, const paired_speedup& gain) {
  return fmt::format(
      "\"{}\" was not shown to be faster than \"{}\", which is kept ({:.3f} to {:.3f} times as fast, 95%): search again when "
      "nothing else runs on the machine, or with a higher {}",
      found.label, rules.label, gain.bounds.low, gain.bounds.high,
      by_language("settings.race.contest_rounds", "race={\"contest_rounds\": ...}"));
}

class final_contest {
 public:
  /// `guided`: the search that found the plans; null for strategies of the user's.
  final_contest(const search_session& search, const starting_plans& plans, const search_budget& budget,
                guided_search* guided)
      : search_{search}, plans_{plans}, budget_{budget}, guided_{guided} {}

  /// Returns: the index in outcome::contest of the plan to take. `found`: the search's plans, the fastest first. The
  /// trainer is left with the training of the plan that is taken, as far as there is one.
  std::size_t find_winner(std::vector<plan> found) {
    found_ = std::move(found);
    search_.run.timed(stage::contest, [&] { time_all(); });
    // What operators cost was learned from steps that are not compiled, so it says nothing of compiled ones.
    if (costs_apply()) guided_->learn(contest());
    describe_contest(search_.log, search_.trials);
    for (const contestant& c : contest()) {
      if (c.lost > 0) search_.trials.expect_lost(c.lost, c.seconds.size());
    }
    search_.trials.keep_slow_plans();
    const std::size_t in_race = contest().size(), first = fastest_accepted();
    const std::size_t winner = winner_or_rules(first, search_.log.compiled || first < in_race);
    if (judges_losses()) {
      warn_of_undecided(winner);
      warn_of_few_batches(contest()[winner]);
    }
    if (search_.log.compiled && guided_ != nullptr) warn_if_uncompiled_is_faster(contest()[winner]);
    for (const contestant& c : contest()) {
      if (c.status == status::not_finite) search_.run.warn(detail::sentence_of_damage(c.label));
    }
    go_to_training_of(winner);
    return winner;
  }

  /// Returns: the search's own plan: the fastest that it found, or its part that was left after its losses had been
  /// rejected.
  const plan& found_plan() const { return found_.front(); }

 private:
  std::vector<contestant>& contest() const { return search_.log.contest; }
  bool judges_losses() const { return search_.settings.stages != stages::times_only; }
  bool costs_apply() const { return guided_ != nullptr && !search_.log.compiled; }
  race_batches batches() const {
    return {.trains = guided_ != nullptr,
            .same_batches = search_.trials.lengths_differ(),
            .as_trained = search_.log.compiled};
  }
  double predict(const plan& p) const {
    return costs_apply() ? guided_->predict(p) : std::numeric_limits<double>::quiet_NaN();
  }

  void time_all() {
    std::vector<racer> racers = plans_.racers(search_.fp32(), found_plan());
    for (const plan& p : found_) add_found_plan(racers, p, search_.log.graph);
    std::vector<racer> left_out;
    if (guided_ != nullptr) left_out = remove_rejected(racers);
    if (guided_ != nullptr && search_.log.compiled)
      std::ranges::move(remove_too_costly_to_compile(racers), std::back_inserter(left_out));
    if (racers.size() > 1) {
      // With a tight budget FP32 need not run again beside batches in which it was timed with the found plan already.
      const auto* answer = search_.trials.find(found_plan());
      const std::size_t of_found =
          answer != nullptr && !search_.log.compiled ? answer->trial.sample.batch_seconds.size() : 0;
      const std::size_t pairs = std::min(of_found, search_.log.baseline.batch_seconds.size());
      contest() = time_contest(search_.run, budget_.contest_settings(pairs), std::move(racers), batches());
      if (search_.log.compiled) require_compiled(contest().front());
    } else {
      contest().push_back(fp32_contestant(search_.run));
    }
    if (contest().front().peak_bytes == 0) contest().front().peak_bytes = search_.log.baseline.peak_bytes;
    for (const racer& r : left_out) contest().push_back({.label = r.label, .plan = r.plan, .rule_based = r.rule_based});
  }

  // Removes and returns the racers whose losses were not accepted, or are unknown and too costly to judge. The
  // trainer's state stays.
  std::vector<racer> remove_rejected(std::vector<racer>& racers) {
    std::vector<racer> rejected;
    search_.run.run_and_undo([&] {
      for (auto r = racers.begin() + 1; r != racers.end();) {
        if (guided_->is_accepted(r->plan) || guided_->accepts_losses(r->plan, r->label)) {
          ++r;
        } else {
          rejected.push_back(std::move(*r));
          r = racers.erase(r);
        }
      }
    });
    search_.run.keep_state();
    return rejected;
  }

  // Removes and returns the plans that there is no time to compile; the search's plan and the fastest rules always
  // stay.
  std::vector<racer> remove_too_costly_to_compile(std::vector<racer>& racers) {
    const std::size_t in_any_case = budget_.plans_to_compile(std::numeric_limits<double>::infinity(), 0);
    if (racers.size() <= in_any_case) return {};  // what one takes to compile does not matter
    if (!seconds_to_compile_) seconds_to_compile_ = seconds_to_compile();
    const std::size_t most = budget_.plans_to_compile(*seconds_to_compile_, search_.trials.fp32_seconds());
    if (racers.size() <= most) return {};
    const auto rank = [&](const racer& r) {
      const bool is_found = r.plan == found_plan() || r.plan == guided_->least_memory();
      return std::tuple{!is_found, !r.rule_based, guided_->predict(r.plan)};
    };
    std::ranges::sort(racers.begin() + 1, racers.end(), {}, rank);
    const auto first_costly = racers.begin() + static_cast<std::ptrdiff_t>(most);
    std::vector<racer> costly(std::make_move_iterator(first_costly), std::make_move_iterator(racers.end()));
    racers.erase(first_costly, racers.end());
    return costly;
  }
  // Returns: the seconds of FP32's first compiled step, which is undone; 0 if the trainer cannot undo it.
  double seconds_to_compile() {
    if (!search_.run.restores()) return 0;
    const auto compile = [](any_trainer& trainer) {
      const switch_on compiled{[&](bool on) { (void)trainer.run_compiled(on); }};
      const detail::stopwatch watch;
      (void)trainer.run_batch();
      return std::vector<double>{watch.seconds()};
    };
    double seconds = 0;
    search_.run.run_and_undo(
        [&] { seconds = search_.run.record_numbers(search_.fp32(), "compiling", purpose::compile, compile).at(0); });
    return seconds;
  }

  // Throws: if FP32's compiled steps failed in the contest, what they throw when they are tried again, else `error`.
  void require_compiled(const contestant& fp32) const {
    if (fp32.status != status::failed) return;
    require_trained(search_.run, compiled_batch(fp32), 0);
    const auto failed = std::find_if(search_.log.trials.rbegin(), search_.log.trials.rend(), [&](const trial& t) {
      return t.stage == stage::contest && t.plan == fp32.plan && t.sample.status == status::failed;
    });
    throw error{fmt::format("FP32's compiled steps fail ({}): see whether the training runs compiled without a search",
                            failed->sample.message)};
  }

  // A compiler may leave out what makes uncompiled steps fast, such as a backend's own kernels.
  void warn_if_uncompiled_is_faster(const contestant& winner) {
    if (winner.seconds.empty() || !guided_->is_accepted(found_plan())) return;
    std::vector<double> compiled_seconds, uncompiled_seconds;
    bool ok = true;
    search_.run.timed(stage::contest, [&] {
      while (ok && uncompiled_seconds.size() < search_.settings.race.min_rounds) {
        const checkpoint here = search_.run.save();
        const sample compiled = compiled_batch(winner);
        if (search_.trials.lengths_differ()) search_.run.restore(here);
        const sample uncompiled = search_.run.run_batch(stage::contest, found_plan(), "uncompiled").sample;
        ok = compiled.ok() && uncompiled.ok();
        compiled_seconds.push_back(compiled.seconds);
        uncompiled_seconds.push_back(uncompiled.seconds);
      }
    });
    const paired_speedup gain = compare_paired(compiled_seconds, uncompiled_seconds);
    if (!ok || !(gain.bounds.low > 1.1)) return;
    search_.run.warn(fmt::format(
        "steps that are not compiled are {:.2f} times as fast under \"{}\" as compiled ones under \"{}\": leave the compiler "
        "out, and search again without it",
        gain.ratio, name(found_plan(), search_.log.graph), winner.label));
  }
  sample compiled_batch(const contestant& c) const {
    const switch_on compiled{[&](bool on) { (void)search_.run.run_compiled(on); }};
    return search_.run.run_batch(stage::contest, c.plan, c.label).sample;
  }

  // Returns: the fastest contestant whose own losses are accepted. If the losses of a guided search's plan are
  // rejected, the part of it that is accepted is entered, at most twice. If its harm may grow, a plan without the
  // formats that make it grow is entered instead.
  std::size_t fastest_accepted() {
    const search_settings& settings = search_.settings;
    const auto wins = [&](std::size_t at) {
      contestant& c = contest()[at];
      const bool pays = settings.slowdown > 0 || budget_.fits_instead(c, contest().front()) ||
                        (c.over_fp32.ratio > 1 && !is_undecided(c));
      return at == 0 || (pays && judge_contestant(c));
    };
    for (int bisections = 0;;) {
      const auto order = ranking(
          contest(), [&](const plan& p) { return predict(p); }, settings.memory_limit, settings.slowdown);
      const auto first = std::find_if(order.begin(), order.end(), wins);
      const contestant& fastest = contest()[order.front()];
      const auto result = first == order.end() ? 0 : *first;
      if (guided_ == nullptr || !detail::is_rejected(fastest)) return result;
      const plan& rejected = fastest.plan;
      const bool enters =
          may_grow(rejected) ? enter_wider(rejected) : bisections++ < 2 && enter_part(guided_->bisect_again(rejected));
      if (!enters) return result;
    }
  }

  // Enters the cheapest plan without the narrowest formats of `rejected`; more are removed until losses are accepted.
  bool enter_wider(const plan& rejected) {
    plan wider = guided_->without_narrowest(rejected);
    search_.run.timed(stage::contest, [&] {
      while (wider != contest().front().plan && !search_.trials.judge(wider, {.quick = true}).trial.accepted &&
             may_grow(wider))
        wider = guided_->without_narrowest(wider);
    });
    return enter_part(wider);
  }

  // Enters what is left of a rejected contestant, with the times of the batches that judged it. If the contest timed
  // compiled steps, the contest is repeated.
  bool enter_part(const plan& part) {
    const auto same = [&](const contestant& c) { return c.plan == part; };
    if (std::any_of(contest().begin(), contest().end(), same)) return false;
    found_.front() = part;
    if (search_.log.compiled) {
      contest().clear();
      search_.run.timed(stage::contest, [&] { time_all(); });
    } else {
      contest().push_back({.label = label_of_found(part, search_.log.graph, contest()), .plan = part});
    }
    describe_contest(search_.log, search_.trials);
    return true;
  }

  // Returns: true if neither the contest nor the batches that judged its losses say that `c` is faster than FP32.
  bool is_undecided(const contestant& c) const {
    const auto* answer = search_.trials.find(c.plan);
    const bool clear = !search_.log.compiled && answer != nullptr && answer->trial.accepted &&
                       answer->trial.bounds.high < search_.trials.fp32_seconds();
    return is_too_noisy(c) && !clear;
  }

  // A part of an accepted plan is expected to train; before it is taken it is judged itself. The state stays.
  bool judge_contestant(contestant& c) {
    if (!judges_losses()) return true;
    if (search_.run.rejects(c.plan)) {
      c.status = status::not_finite;
      return false;
    }
    expect_growing_harm(c.plan);
    const auto* before = search_.trials.find(c.plan);
    const bool was_rejected = before != nullptr && !before->trial.accepted;
    search_.run.timed(stage::contest, [&] {
      search_.run.run_and_undo(
          [&] { (void)search_.trials.judge(c.plan, {.label = c.label, .quick = guided_ != nullptr}); });
      search_.run.keep_state();
    });
    const auto& answer = *search_.trials.find(c.plan);
    c.loss = answer.verdict;
    c.loss_batches = static_cast<std::size_t>(answer.trial.sample.batches);
    if (answer.trial.accepted || was_rejected) return answer.trial.accepted;
    search_.run.warn(why_not_taken(c, search_.settings.tolerance, guided_ != nullptr));
    return false;
  }

  bool may_grow(const plan& p) const { return comp::may_grow(p, search_.log.graph); }

  // Has plans judged by many batches from now on if the harm of `p` may grow with the training,
  // which few batches do not show. A test may take what is left of the budget, half of it for FP32's batches, and has a
  // quarter of the whole budget at least. That of states always has as many batches as any.
  void expect_growing_harm(const plan& p) const {
    constexpr std::size_t most = search_budget::most_for_growing_harm;
    if (search_.trials.judges_whole_runs() || !may_grow(p)) return;
    const double batches_left = guided_ != nullptr ? guided_->batches_left() : 0;
    const std::size_t least = lowers_states(p, search_.log.graph) ? most : std::min(budget_.batches() / 4, most);
    search_.trials.expect_growth(
        std::max(static_cast<std::size_t>(std::clamp(batches_left / 2, 0.0, double{most})), least));
  }

  // Returns: the index of the contestant to take: the winner, or the fastest rule-based plan. That one is kept if it is
  // not slower than FP32 and the winner is not shown to be faster. If FP32 won only because noise hid the gain of the
  // rule-based plan, that plan is taken. `in_race`: the winner took part in the race.
  std::size_t winner_or_rules(std::size_t winner, bool in_race) {
    const contestant& won = contest()[winner];
    if (won.rule_based || search_.settings.slowdown > 0) return winner;
    const bool is_fp32 = winner == 0;
    const auto at = fastest_rules(contest(), [&](const contestant& c) {
      const bool fits = !budget_.too_large(c) || budget_.too_large(won);
      return fits &&
             (is_fp32 ? is_undecided(c) : !(c.over_fp32.ratio < 1) || budget_.fits_instead(c, contest().front()));
    });
    if (!at) return winner;
    contestant& rules = contest()[*at];
    if (is_fp32) {
      if (!judge_contestant(rules)) return 0;
      search_.run.warn(why_rules_stand_for_fp32(rules));
      return *at;
    }
    paired_speedup gain{};
    search_.run.timed(stage::contest, [&] {
      gain = gain_over_rules(search_.run, budget_.contest_settings(0), won, rules, in_race, batches());
    });
    // The backend's own autocast is no plan of operators, so no costs are known of it.
    const bool faster_by_costs =
        costs_apply() && !rules.plan.runs_autocast() && guided_->is_faster(won.plan, rules.plan);
    if (gain.clearly_faster() || (gain.ratio > 1 && faster_by_costs)) return winner;
    if (!judge_contestant(rules)) return winner;
    if (gain.ratio > 1) search_.run.warn(why_rules_are_kept(won, rules, gain));
    return *at;
  }

  // Warns if the winner has formats below 16 bits and few batches judged it.
  void warn_of_few_batches(const contestant& winner) const {
    if (winner.loss_batches >= search_budget::few_for_growing_harm || !winner.plan.has_scaled()) return;
    search_.run.warn(fmt::format(
        "the losses of \"{}\" were compared with FP32's in {} batches alone (harm of formats below 16 bits grows with the "
        "training): raise {} to judge it by more batches, or plan more epochs",
        winner.label, winner.loss_batches, setting("budget")));
  }

  // Warns if FP32 won and a contestant that is faster was neither accepted nor shown to train worse.
  void warn_of_undecided(std::size_t winner) const {
    const contestant* fastest = nullptr;
    for (const contestant& c : contest()) {
      const bool open = c.loss && detail::is_rejected(c) && !is_shown_worse(*c.loss, search_.settings.tolerance);
      if (!open || !c.over_fp32.clearly_faster() || !std::isfinite(c.over_fp32.bounds.high)) continue;
      if (fastest == nullptr || c.over_fp32.ratio > fastest->over_fp32.ratio) fastest = &c;
    }
    if (winner == 0 && fastest != nullptr)
      search_.run.warn(why_fp32_is_kept(reference_name(search_.log.graph), *fastest, search_.settings.tolerance));
  }

  void go_to_training_of(std::size_t winner) {
    const auto* answer = search_.trials.find(contest()[winner].plan);
    const std::optional<checkpoint> fp32_end = search_.trials.fp32_end();
    if (guided_ == nullptr) {  // no batch of the contest is training
      const auto end = winner == 0 ? fp32_end : answer != nullptr && judges_losses() ? answer->end : std::nullopt;
      return search_.run.restore(end ? *end : search_.trials.reference().start());
    }
    if (winner == 0 && search_.run.trained().batches == 0 && fp32_end) search_.run.restore(*fp32_end);
    if (answer != nullptr && answer->end && answer->end->trained.batches > search_.run.trained().batches)
      search_.run.restore(*answer->end);
  }

  search_session search_;
  const starting_plans& plans_;
  search_budget budget_;
  guided_search* guided_;
  std::vector<plan> found_ = {};
  std::optional<double> seconds_to_compile_ = {};
};

/// For a training that is too short to search in: one look at the losses and times of the rule-based plan. Returns: its
/// place in the contest if nothing speaks against it, else FP32's.
inline std::size_t judge_rules_alone(const search_session& search, const starting_plans& plans,
                                     const search_budget& budget) {
  constexpr std::size_t batches_of_a_search = 60;  // that are not training
  outcome& log = search.log;
  log.compiled = false;  // the times are those of the batches that judge losses
  log.contest.assign(1, fp32_contestant(search.run));
  log.contest.front().seconds = log.baseline.batch_seconds;
  log.contest.front().peak_bytes = log.baseline.peak_bytes;
  const std::vector<racer> racers = plans.racers(search.fp32(), search.fp32());
  std::size_t winner = 0;
  if (racers.size() > 1 && !budget.is_too_short_for_one()) {
    const racer& rules = racers[1];
    search.run.timed(stage::losses,
                     [&] { (void)search.trials.judge(rules.plan, {.label = rules.label, .quick = true}); });
    const trial& t = search.trials.find(rules.plan)->trial;
    log.contest.push_back({.label = rules.label, .plan = rules.plan, .rule_based = rules.rule_based});
    describe_contest(log, search.trials);
    const bool pays =
        budget.fits_instead(log.contest.back(), log.contest.front()) || t.bounds.high < search.trials.fp32_seconds();
    winner = t.accepted && pays ? 1 : 0;
  }
  search.run.warn(
      fmt::format("the training is too short to search in ({} batches; a search takes about {}): {}. More epochs, "
                  "an earlier search's plan in {} or its ledger make a search pay",
                  budget.planned(), batches_of_a_search,
                  winner > 0                      ? "the rule-based plan was looked at, and taken"
                  : budget.is_too_short_for_one() ? "FP32 stays"
                                                  : "the rule-based plan was looked at, and FP32 stays",
                  setting("warm_start")));
  if (winner == 0 && search.trials.fp32_end()) search.run.restore(*search.trials.fp32_end());
  return winner;
}

/// Fills in the contest of the paper's search, which times no plan beside FP32: FP32 and `found`, by their own runs.
inline void enter_untimed(const search_session& search, const trial& found) {
  std::vector<contestant>& contest = search.log.contest;
  const sample& fp32 = search.log.baseline;
  contest.assign(1, fp32_contestant(search.run));
  if (found.plan != search.fp32()) {
    contestant& c = contest.emplace_back();
    c.label = label_of_found(found.plan, search.log.graph, contest);
    c.plan = found.plan;
    c.peak_bytes = found.sample.peak_bytes;
    c.seconds = found.sample.batch_seconds;
    c.over_fp32 = compare_paired(fp32.batch_seconds, c.seconds);
    c.over_fp32.ratio = median(fp32.batch_seconds) / median(c.seconds);  // the first batches may be slow
  }
  contest.front().seconds = fp32.batch_seconds;
  contest.front().peak_bytes = fp32.peak_bytes;
  if (search.trials.find(found.plan) != nullptr) describe_contest(search.log, search.trials);
}

}  // namespace comp
