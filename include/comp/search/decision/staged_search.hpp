// SPDX-License-Identifier: Apache-2.0
// Runs the paper's two stages with strategies that the user chose: find() is the flow of the paper's figure 4, whose
// roles of operators ../space/spaces.hpp gives. Stage 1 judges each plan that its strategy asks for
// by its losses; the fastest accepted one is plan* of algorithm 1. Stage 2 times plans that keep the operators which
// stage 1 decided and differ in the others (algorithm 2).
// In the paper's own search (settings.verbatim) stage 2 trains a batch of each plan. Other searches race its plans: the
// best plan so far takes part in every race, and times are relative to its, so that plans of different races compare
// although the machine drifts. If stage 1 accepts no plan, they bisect the fastest rejected one over its operators.
// Source: CoMP paper, section 3 (algorithms 1 and 2); "gradually return to a more conservative plan", section 4.4; one
// stage alone, section 4.6.
#pragma once

#include <algorithm>
#include <comp/core/op_graph.hpp>
#include <comp/core/search_space.hpp>
#include <comp/search/decision/accepted_operators.hpp>
#include <comp/search/decision/budget.hpp>
#include <comp/search/decision/learned_costs.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/space/spaces.hpp>
#include <comp/search/times/race.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/strategy/greedy.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace comp {

// A strategy may only ask for whole plans of its space. A plan that it asks for again gets the known answer. A strategy
// that goes on asking for known plans only is ended, so that a faulty one does not run for ever.

/// Throws: `plan_error`, naming the operator, for a plan that is not in `space`.
inline void require_in_space(const plan& p, const search_space& space, const op_graph& graph) {
  const std::string remedy = fmt::format("give plans that are made of the space that start() was given, by its {}",
                                         by_language("base(), set() or random()", "base and set()"));
  require<plan_error>(p.size() == space.base().size(),
                      "the strategy asked for a plan of {} operators (the model has {}): {}", p.size(),
                      space.base().size(), remedy);
  const plan nearest = space.project(p);
  const auto mismatch = std::mismatch(p.begin(), p.end(), nearest.begin()).first;
  if (mismatch != p.end()) {
    const auto at = static_cast<std::size_t>(mismatch - p.begin());
    const auto group = std::find_if(space.groups().begin(), space.groups().end(), [&](const op_group& g) {
      return std::find(g.operators.begin(), g.operators.end(), at) != g.operators.end();
    });
    const std::vector<precision> fixed{space.base()[at]};
    const bool is_searched = group != space.groups().end();
    throw plan_error{fmt::format("the strategy asked for operator {} (\"{}\") in {} (the space has {} there{}): {}", at,
                                 graph[at].name, name(*mismatch), names_of(is_searched ? group->levels : fixed),
                                 is_searched ? ", for all operators of group \"" + group->name + "\" alike" : "",
                                 remedy)};
  }
  require<plan_error>(space.valid(p),
                      "the strategy asked for a plan that the space refuses (space.valid() says no): {}", remedy);
}

/// A strategy's run with these checks.
class watched_strategy {
 public:
  watched_strategy(any_strategy::run run, const search_space& space, const op_graph& graph)
      : run_{std::move(run)}, space_{space}, graph_{graph} {}

  /// Returns: up to `n` plans; none if the strategy is done, or has asked a thousand times in a row for nothing new.
  /// Throws: `plan_error` for a plan that is not in the space.
  std::vector<plan> ask(std::size_t n) {
    std::vector<plan> plans = run_.ask(n);
    bool any_new = false;
    for (const plan& p : plans) {
      require_in_space(p, space_, graph_);
      any_new = requested_.insert(p).second || any_new;
    }
    repeated_requests_ = any_new ? 0 : repeated_requests_ + 1;
    if (repeated_requests_ >= max_repeated_requests) plans.clear();
    return plans;
  }
  void tell(const trial& result) { run_.tell(result); }

  /// Returns: the warning for a strategy that was ended; empty if it ended by itself.
  std::string warning() const {
    if (repeated_requests_ < max_repeated_requests) return {};
    return fmt::format(
        "the strategy was ended: it asked {} times in a row for plans that it had asked for before ({} in all; "
        "a run is done when ask() gives no plan): look at when its ask() ends",
        max_repeated_requests, requested_.size());
  }

 private:
  static constexpr std::size_t max_repeated_requests = 1000;
  any_strategy::run run_;
  const search_space& space_;
  const op_graph& graph_;
  std::set<plan> requested_ = {};
  std::size_t repeated_requests_ = 0;
};

/// Stage 2 by races.
class stage_two {
 public:
  stage_two(evaluator& run, const race_settings& settings) : run_{run}, settings_{settings} {}

  /// Returns: the fastest plan of the space; its most conservative one if none is clearly faster.
  plan run(const any_strategy& strategy, const search_space& space) {
    best_.plan = space.conservative();
    if (space.groups().empty()) return best_.plan;
    watched_strategy run{strategy.start(space), space, run_.log().graph};
    for (auto plans = run.ask(8); !plans.empty(); plans = run.ask(8)) {
      race_against_best(plans);
      for (const plan& p : plans) run.tell(trials_.at(p));
    }
    if (!run.warning().empty()) run_.warn(run.warning());
    return best_.plan;
  }

 private:
  void race_against_best(const std::vector<plan>& plans) {
    std::vector<racer> racers{{.plan = best_.plan}};
    for (const plan& p : plans) {
      if (p != best_.plan && !trials_.contains(p)) racers.push_back({.plan = p});
    }
    if (racers.size() == 1 && trials_.contains(best_.plan)) return;
    race{run_, stage::times, settings_, settings_.max_rounds}.run(racers);
    set_best(best_.accepted ? best_ : as_trial(racers.front()));
    const racer* leader = &racers.front();
    for (std::size_t i = 1; i < racers.size(); ++i) {
      const racer& r = racers[i];
      trials_[r.plan] = relative_to(racers.front(), r);
      if (beats(r, *leader)) leader = &r;
    }
    if (leader != &racers.front()) set_best(trials_.at(leader->plan));
  }

  // All others are measured against the best plan so far, so its own time has no interval.
  void set_best(const trial& t) {
    best_ = t;
    best_.bounds = {best_.seconds, best_.seconds};
    trials_[best_.plan] = best_;
  }

  static bool beats(const racer& r, const racer& leader) {
    // If one of them failed, the one that ran to its end is the faster one.
    if (r.status != status::ok || leader.status != status::ok) return r.status == status::ok && !r.has_left;
    return compare_paired(leader.seconds, r.seconds).clearly_faster();
  }

  static trial as_trial(const racer& r) {
    trial t;
    t.stage = stage::times;
    t.plan = r.plan;
    t.accepted = r.status == status::ok;
    t.sample.status = r.status;
    t.sample.batch_seconds = r.seconds;
    if (t.accepted) t.seconds = median(r.seconds);
    return t;
  }

  trial relative_to(const racer& reference, const racer& r) const {
    trial t = as_trial(r);
    if (!t.accepted || !best_.accepted || reference.status != status::ok) return t;
    const auto slowdown = compare_paired(r.seconds, reference.seconds);
    t.seconds = slowdown.ratio * best_.seconds;
    t.bounds = {slowdown.bounds.low * best_.seconds, slowdown.bounds.high * best_.seconds};
    return t;
  }

  evaluator& run_;
  race_settings settings_;
  trial best_ = {};
  std::map<plan, trial> trials_;
};

class staged_search {
 public:
  /// Throws: `settings_error` if the paper's search is asked for and the trainer cannot restore its state.
  staged_search(const search_session& search, const starting_plans& plans)
      : search_{search},
        plans_{plans},
        from_{plans.where_to_start(search.fp32())},
        fp32_{.plan = search.fp32(), .sample = search.log.baseline, .accepted = true},
        segments_(search.log.graph.size(), segment_kind::decided) {
    require<settings_error>(search.run.restores() || !search.settings.verbatim,
                            "the paper's search runs each plan from the same state (this backend has no save() and "
                            "restore()): give it both, or use comp::two_stage");
    detail::summarise_times(fp32_);
  }

  /// Returns: the fastest plan that was found; FP32 if there is no other.
  plan find(const any_strategy& stage1, const any_strategy& stage2) {
    const search_settings& settings = search_.settings;
    if (settings.verbatim) best_ = fp32_;
    if (from_.lows.empty()) return fp32_.plan;
    if (settings.stages != stages::times_only) {
      search_.run.timed(stage::losses, [&] { judge_plans(stage1); });
      stage_one_ = best_;
      if (settings.stages == stages::losses_only) return best_ ? best_->plan : fp32_.plan;
    }
    const search_space space = space_of_times();
    plan found = fp32_.plan;
    search_.run.timed(stage::times, [&] {
      found = settings.verbatim ? train_a_batch_of_each(stage2, space) : race_for(stage2, space);
    });
    return found;
  }

  /// Returns: the trial of plan* of algorithm 1; nothing if stage 1 found none or did not run.
  const std::optional<trial>& stage_one() const { return stage_one_; }
  /// Returns: the run of the found plan in the paper's search, which holds no contest.
  const std::optional<trial>& best() const { return best_; }
  /// Returns: per operator, whether stage 1 decided it, stage 2 searched it, or it follows its neighbours.
  const std::vector<segment_kind>& segments() const { return segments_; }

 private:
  // Runs each plan that the strategy asks for.
  void ask(const any_strategy& strategy, const search_space& space, auto run) {
    watched_strategy watched{strategy.start(space), space, search_.log.graph};
    for (auto plans = watched.ask(1); !plans.empty(); plans = watched.ask(1)) {
      for (const plan& p : plans) watched.tell(with_lower_better(run(p)));
    }
    if (!watched.warning().empty()) search_.run.warn(watched.warning());
  }
  // Strategies take lower losses for better ones, so that losses that are maximised change their sign.
  trial with_lower_better(trial t) const {
    if (!search_.log.higher_is_better) return t;
    t.sample.loss = -t.sample.loss;
    for (auto* losses : {&t.sample.losses, &t.sample.curve}) {
      for (double& loss : *losses) loss = -loss;
    }
    for (auto& curve : t.sample.curves) {
      for (double& loss : curve) loss = -loss;
    }
    return t;
  }

  // The paper compares epochs by their running time, comp by the median of batches paired with FP32's.
  double seconds(const trial& t) const { return search_.settings.verbatim ? t.sample.seconds : t.seconds; }

  // Algorithm 1. In the paper's search FP32 is one of the plans that are chosen among, and an epoch with any loss that
  // is not finite is rejected, because no loss scaling skips it.
  void judge_plans(const any_strategy& strategy) {
    std::optional<trial> rejected;
    ask(strategy, plans_.candidates().space, [&](const plan& p) {
      if (p == fp32_.plan) return fp32_;
      trial t = search_.trials.judge(p).trial;
      if (search_.settings.verbatim) t.accepted = t.accepted && t.sample.not_finite == 0;
      std::optional<trial>& fastest = t.accepted ? best_ : rejected;
      if (t.sample.ok() && (!fastest || seconds(t) < seconds(*fastest))) fastest = t;
      return t;
    });
    if (!best_) best_ = bisect_rejected(rejected ? rejected->plan : plans_.candidates().space.base());
  }

  // Returns: the part of `rejected` whose losses are accepted; nothing if there is none. No budget limits it, because
  // the user chose a strategy and with it what a search may cost.
  std::optional<trial> bisect_rejected(const plan& rejected) {
    // The reference may be low for want of memory.
    const plan low_part =
        mix(rejected, fp32_.plan, [&](std::size_t i) { return !contains(from_.levels[i], rejected[i]); });
    if (low_part == fp32_.plan || !search_.run.restores()) return {};
    search_.run.warn(
        "no candidate of stage 1 was accepted: operators of the fastest one were left in FP32 until its losses were");
    guided_start from = from_;
    from.batches_per_epoch = 0;  // no budget
    learned_costs costs{search_, from.levels};
    const bisection_settings chosen = {};
    const plan part = accepted_operators{search_, chosen, costs, from}.find(low_part);
    return part == fp32_.plan ? std::nullopt : std::optional{search_.trials.find(part)->trial};
  }

  // Returns: stage 2's space. The operators that stage 1 decided are as in its plan (the paper's P_s1 in algorithm 2),
  // or as in FP32 if it found no plan, or one that is too slow to build on.
  search_space space_of_times() {
    const op_graph& graph = search_.log.graph;
    const search_settings& settings = search_.settings;
    if (settings.stages == stages::times_only)
      return space_without_losses(plans_.candidates(), graph, from_.lows, settings.times_tie, plans_.runs());
    const bool pays = best_ && best_->seconds < settings.cut().slower_than_fp32 * search_.trials.fp32_seconds();
    segment_space segments = make_segment_space(graph, plans_.candidates().roles, pays ? best_->plan : fp32_.plan,
                                                settings.times_tie, plans_.runs());
    segments_ = std::move(segments.kinds);
    return std::move(segments.space);
  }

  // Algorithm 2 to the letter: the first batch of an epoch of each plan; the one that took the least time wins.
  plan train_a_batch_of_each(const any_strategy& strategy, const search_space& space) {
    if (space.groups().empty() && space.base() == fp32_.plan) return fp32_.plan;
    std::optional<trial> fastest;
    ask(strategy, space, [&](const plan& p) {
      const trial t = search_.run.run_and_record(stage::times, p, {}, [&](const trial& begun) {
        sample batch;
        search_.run.restore(search_.trials.reference().start());
        search_.run.train(begun, p, 1, batch, detail::never_cut);
        return batch;
      });
      if (t.sample.ok() && (!fastest || t.sample.seconds < fastest->sample.seconds)) fastest = t;
      return t;
    });
    if (fastest) best_ = fastest;
    return best_->plan;
  }

  // The size of stage 2's space is known only after stage 1. If it is too large for the chosen strategy, greedy
  // searches it, so that the cost of stage 1 is not wasted.
  plan race_for(const any_strategy& strategy, const search_space& space) {
    stage_two second{search_.run, search_.settings.race};
    const any_strategy* chosen = &strategy;
    const any_strategy greedy{strategy::greedy{}};
    try {
      (void)strategy.start(space);
    } catch (const space_error& e) {
      search_.run.warn(fmt::format("stage 2 was searched by greedy: {}", e.what()));
      chosen = &greedy;
    }
    plan found;
    search_.run.run_and_undo([&] { found = second.run(*chosen, space); });
    return found;
  }

  search_session search_;
  const starting_plans& plans_;
  guided_start from_;
  trial fp32_;  // the reference, as a plan that stage 1 may choose
  std::optional<trial> best_ = {}, stage_one_ = {};
  std::vector<segment_kind> segments_;
};

}  // namespace comp
