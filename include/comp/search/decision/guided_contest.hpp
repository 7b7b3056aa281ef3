// SPDX-License-Identifier: Apache-2.0
// The contest at the end of a guided search. Its batches are training, because only plans with accepted operators take
// part; the one that is taken is judged by its own losses first.
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/search/decision/guided_search.hpp>
#include <comp/search/decision/search_budget.hpp>
#include <comp/search/decision/session.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/decision/winner.hpp>
#include <comp/search/timing/contest.hpp>
#include <comp/search/timing/rivals.hpp>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <tuple>
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
    // What operators cost was learned from steps that are not compiled, so it says nothing of compiled ones.
    const bool costs_hold = !search_.log.compiled;
    if (costs_hold) guided_.learn(search_.log.contest);
    describe_contest(search_.log, search_.trials);
    for (const contestant& c : search_.log.contest) {
      if (c.lost > 0) search_.trials.expect_lost(c.lost, c.seconds.size());
    }
    const std::size_t raced = search_.log.contest.size(), first = fastest_accepted();
    const std::size_t winner = choice_.beside_rules(
        {.winner = first,
         .raced = search_.log.compiled || first < raced,
         .settings = budget_.contest(0),
         .batches = batches(),
         .known_faster = [&](const plan& p, const plan& than) { return costs_hold && guided_.is_faster(p, than); },
         .accepts = [&](contestant& c) { return is_accepted(c); }});
    choice_.warn_of_undecided(winner);
    choice_.warn_of_few_batches(winner);
    if (search_.log.compiled) warn_if_uncompiled_is_faster(search_.log.contest[winner]);
    for (const contestant& c : search_.log.contest) {
      if (c.status == status::not_finite) search_.run.warn(detail::sentence_of_spoiling(c.label));
    }
    go_to_training_of(winner);
    return winner;
  }

  /// The search's own plan: the proposal, or what was left of it when its losses had been rejected.
  const plan& found() const { return found_; }

 private:
  race_batches batches() const {
    return {.trains = true, .same_batches = search_.trials.lengths_differ(), .as_trained = search_.log.compiled};
  }
  double predicted(const plan& p) const {
    return search_.log.compiled ? std::numeric_limits<double>::quiet_NaN() : guided_.predicted(p);
  }

  void race_all() {
    std::vector<racer> racers = plans_.racers(found_);
    enter_found(racers, guided_.allowed(), search_.log.graph);
    if (!guided_.least_memory().empty()) enter_found(racers, guided_.least_memory(), search_.log.graph);
    std::vector<racer> refused = take_refused(racers);
    if (search_.log.compiled) std::ranges::move(take_dear(racers), std::back_inserter(refused));
    std::vector<contestant>& contest = search_.log.contest;
    if (racers.size() > 1) {
      const auto* pairs = search_.trials.known(found_);
      const std::size_t judged =
          pairs != nullptr && !search_.log.compiled ? pairs->trial.sample.batch_seconds.size() : 0;
      const std::size_t known = std::min(judged, search_.log.baseline.batch_seconds.size());
      contest = hold_contest(search_.run, budget_.contest(known), std::move(racers), batches());
      if (search_.log.compiled) require_compiled(contest.front());
    } else {
      contest.push_back({.label = "fp32", .plan = plans_.fp32(), .over_fp32 = {1, {1, 1}}});
    }
    if (contest.front().peak_bytes == 0) contest.front().peak_bytes = search_.log.baseline.peak_bytes;
    for (const racer& r : refused) contest.push_back({.label = r.label, .plan = r.plan, .rule_based = r.rule_based});
  }

  // Removes and returns the racers whose losses were not accepted, or are unknown and too costly to judge. The
  // trainer's state stays.
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

  // Removes and returns the plans that there is no time to compile; the search's plan and the fastest rules always
  // stay.
  std::vector<racer> take_dear(std::vector<racer>& racers) {
    const std::size_t in_any_case = budget_.plans_to_compile(std::numeric_limits<double>::infinity(), 0);
    if (racers.size() <= in_any_case) return {};  // what one takes to compile does not matter
    if (!seconds_to_compile_) seconds_to_compile_ = seconds_to_compile();
    const std::size_t most = budget_.plans_to_compile(*seconds_to_compile_, search_.trials.fp32_seconds());
    if (racers.size() <= most) return {};
    const auto rank = [&](const racer& r) {
      const bool is_found = r.plan == found_ || r.plan == guided_.least_memory();
      return std::tuple{!is_found, !r.rule_based, guided_.predicted(r.plan)};
    };
    std::ranges::sort(racers.begin() + 1, racers.end(), {}, rank);
    const auto first_dear = racers.begin() + static_cast<std::ptrdiff_t>(most);
    std::vector<racer> dear(std::make_move_iterator(first_dear), std::make_move_iterator(racers.end()));
    racers.erase(first_dear, racers.end());
    return dear;
  }
  // Returns: the seconds of FP32's first compiled step, which is undone; 0 if the trainer cannot undo it.
  double seconds_to_compile() {
    if (!search_.run.restores()) return 0;
    const checkpoint here = search_.run.save();
    const auto compile = [](any_trainer& trainer) {
      const compiled_steps on{trainer};
      const detail::stopwatch watch;
      (void)trainer.run_batch();
      return std::vector<double>{watch.seconds()};
    };
    const auto seconds = search_.run.record_numbers(search_.fp32(), "compiling", purpose::compile, compile);
    search_.run.restore(here);
    return seconds.at(0);
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
    if (winner.seconds.empty() || !guided_.is_accepted(found_)) return;
    std::vector<double> compiled_seconds, uncompiled_seconds;
    bool ok = true;
    search_.run.timed(stage::contest, [&] {
      while (ok && uncompiled_seconds.size() < search_.settings.race.min_rounds) {
        const checkpoint here = search_.run.save();
        const sample compiled = compiled_batch(winner);
        if (search_.trials.lengths_differ()) search_.run.restore(here);
        const sample uncompiled = search_.run.run_batch(stage::contest, found_, "uncompiled").sample;
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
        gain.ratio, name(found_, search_.log.graph), winner.label));
  }
  sample compiled_batch(const contestant& c) const {
    const compiled_steps on{search_.run};
    return search_.run.run_batch(stage::contest, c.plan, c.label).sample;
  }

  // Returns: the fastest contestant whose own losses are accepted. In place of a rejected one its largest accepted part
  // takes part, twice at most; in place of one below 16 bits, a plan with wider formats.
  std::size_t fastest_accepted() {
    std::vector<contestant>& contest = search_.log.contest;
    const search_settings& settings = search_.settings;
    const auto wins = [&](std::size_t at) {
      contestant& c = contest[at];
      const bool pays =
          settings.slowdown > 0 || choice_.fits_instead(c) || (c.over_fp32.ratio > 1 && !choice_.undecided(c));
      return at == 0 || (pays && is_accepted(c));
    };
    for (int mended = 0;;) {
      const auto order = ranking(
          contest, [&](const plan& p) { return predicted(p); }, settings.memory_limit, settings.slowdown);
      const auto first = std::find_if(order.begin(), order.end(), wins);
      const contestant& fastest = contest[order.front()];
      const auto result = first == order.end() ? 0 : *first;
      if (!detail::rejected(fastest)) return result;
      if (fastest.plan.has_scaled()) {
        if (!enter_wider(fastest.plan)) return result;
      } else if (mended++ == 2 || !enter_mended(guided_.mended(fastest.plan))) {
        return result;
      }
    }
  }

  // Enters the cheapest plan without the narrowest formats of `rejected`; more are removed until losses are accepted.
  bool enter_wider(const plan& rejected) {
    plan wider = guided_.without_narrowest(rejected);
    search_.run.timed(stage::contest, [&] {
      while (wider != search_.log.contest.front().plan && !search_.trials.judge(wider, {}, true).trial.accepted &&
             wider.has_scaled())
        wider = guided_.without_narrowest(wider);
    });
    return enter_mended(wider);
  }

  // Enters what is left of a rejected contestant, with the times of the batches that judged it. If the contest timed
  // compiled steps, the contest is repeated.
  bool enter_mended(const plan& part) {
    std::vector<contestant>& contest = search_.log.contest;
    const auto same = [&](const contestant& c) { return c.plan == part; };
    if (std::any_of(contest.begin(), contest.end(), same)) return false;
    found_ = part;
    if (search_.log.compiled) {
      contest.clear();
      search_.run.timed(stage::contest, [&] { race_all(); });
    } else {
      contest.push_back({.label = label_of_found(part, search_.log.graph, contest), .plan = part});
    }
    describe_contest(search_.log, search_.trials);
    return true;
  }

  // A part of an accepted plan is expected to train; before it is taken it is judged itself. The state stays.
  bool is_accepted(contestant& c) {
    if (search_.run.rejects(c.plan)) {
      c.status = status::not_finite;
      return false;
    }
    choice_.expect_growing_harm(c.plan, guided_.batches_left());
    const auto* before = search_.trials.known(c.plan);
    const bool was_rejected = before != nullptr && !before->trial.accepted;
    search_.run.timed(stage::contest, [&] {
      const checkpoint here = search_.run.save();
      (void)search_.trials.judge(c.plan, c.label, true);
      search_.run.restore(here);
      search_.run.keep_state();
    });
    const auto& judged = *search_.trials.known(c.plan);
    c.loss = judged.verdict;
    c.loss_batches = static_cast<std::size_t>(judged.trial.sample.batches);
    if (judged.trial.accepted || was_rejected) return judged.trial.accepted;
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
  std::optional<double> seconds_to_compile_ = {};
};

}  // namespace comp
