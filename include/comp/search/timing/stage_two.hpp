// SPDX-License-Identifier: Apache-2.0
// Runs stage 2 of the paper: plans that differ in the undecided operators are timed in turns, and the fastest wins.
// Every race includes the best plan so far, and candidates' times are relative to it, so that plans of different races
// can be compared although the machine drifts. Source: CoMP paper, section 3.3.
// Not here: which plans there are (space/segments.hpp, algorithm 2).
#pragma once

#include <comp/search/space/watched_strategy.hpp>
#include <comp/search/timing/race.hpp>
#include <cstddef>
#include <map>
#include <vector>

namespace comp {

class stage_two {
 public:
  stage_two(evaluator& run, outcome& log, const race_settings& settings) : run_{run}, log_{log}, settings_{settings} {}

  /// Returns: the fastest plan of the space; its most conservative one if none is clearly faster.
  plan run(const any_strategy& strategy, const search_space& space) {
    best_.plan = space.conservative();
    if (space.groups().empty()) return best_.plan;
    watched_strategy run{strategy.start(space), space, log_.graph};
    for (auto plans = run.ask(8); !plans.empty(); plans = run.ask(8)) {
      hold_race(plans);
      for (const plan& p : plans) run.tell(trials_.at(p));
    }
    if (!run.warning().empty()) log_.warnings.push_back(run.warning());
    return best_.plan;
  }

 private:
  void hold_race(const std::vector<plan>& plans) {
    std::vector<racer> racers{{.plan = best_.plan}};
    for (const plan& p : plans) {
      if (p != best_.plan && !trials_.contains(p)) racers.push_back({.plan = p});
    }
    if (racers.size() == 1 && trials_.contains(best_.plan)) return;
    race{run_, stage::times, settings_, settings_.max_rounds}.run(racers, true);
    set_reference(racers.front());
    const racer* leader = &racers.front();
    for (std::size_t i = 1; i < racers.size(); ++i) {
      const racer& r = racers[i];
      const trial t = relative_to(racers.front(), r);
      trials_[r.plan] = t;
      if (beats(r, *leader)) leader = &r;
    }
    if (leader == &racers.front()) return;
    best_ = trials_.at(leader->plan);
    best_.bounds = {best_.seconds, best_.seconds};
    trials_[best_.plan] = best_;
  }

  // All others are measured against the best plan so far, so its own time has no interval.
  void set_reference(const racer& r) {
    if (!best_.accepted) best_ = as_trial(r);
    best_.bounds = {best_.seconds, best_.seconds};
    trials_[best_.plan] = best_;
  }

  static bool beats(const racer& r, const racer& leader) {
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
  outcome& log_;
  race_settings settings_;
  trial best_ = {};
  std::map<plan, trial> trials_;
};

}  // namespace comp
