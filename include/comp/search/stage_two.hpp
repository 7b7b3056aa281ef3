// SPDX-License-Identifier: Apache-2.0
// Stage 2, by batches: plans that differ in the undecided operators, timed in turns; the fastest wins.
// Every race includes the best plan so far, and a candidate's time is given relative to it, so that plans of different
// races compare although the machine drifts. Source: CoMP paper, section 3.3.
#pragma once

#include <algorithm>
#include <comp/core/strategy.hpp>
#include <comp/search/race.hpp>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace comp {

template <class Evaluator>
class stage_two {
 public:
  stage_two(Evaluator& run, const race_settings& settings) : run_{run}, settings_{settings} {}

  /// Returns: the fastest plan of the space; its most conservative one when nothing is clearly faster.
  template <SearchStrategy S>
  plan operator()(const S& strategy, const search_space& space) {
    best_.plan = space.conservative();
    if (space.groups().empty()) return best_.plan;
    auto asking = strategy.start(space);
    for (auto plans = asking.ask(8); !plans.empty(); plans = asking.ask(8)) {
      hold_race(plans);
      for (const plan& p : plans) asking.tell(done_.at(p));
    }
    return best_.plan;
  }

 private:
  void hold_race(const std::vector<plan>& plans) {
    std::vector<racer> racers{{.plan = best_.plan}};
    for (const plan& p : plans) {
      if (p != best_.plan && !done_.contains(p)) racers.push_back({.plan = p});
    }
    if (racers.size() == 1 && done_.contains(best_.plan)) return;
    race<Evaluator>{run_, stage::batches, settings_, settings_.max_rounds}(racers, true);
    const trial reference = best_.seconds < std::numeric_limits<double>::infinity() ? best_ : as_trial(racers.front());
    done_[reference.plan] = reference;
    best_ = reference;
    for (const racer& r : racers) {
      if (r.plan == reference.plan) continue;
      const trial t = relative_to(reference, racers.front(), r);
      done_[r.plan] = t;
      if (clearly_faster(t, best_)) best_ = t;
    }
  }

  static trial as_trial(const racer& r) {
    trial t;
    t.stage = stage::batches;
    t.plan = r.plan;
    t.accepted = r.status == status::ok;
    t.sample.status = r.status;
    t.sample.batch_seconds = r.seconds;
    if (t.accepted) t.seconds = median(r.seconds);
    return t;
  }

  static trial relative_to(const trial& reference, const racer& its_racer, const racer& r) {
    trial t = as_trial(r);
    if (!t.accepted || !reference.accepted) return t;
    const auto slowdown = compare_paired(r.seconds, its_racer.seconds);
    t.seconds = slowdown.ratio * reference.seconds;
    t.bounds = {slowdown.bounds.low * reference.seconds, slowdown.bounds.high * reference.seconds};
    if (slowdown.bounds.high < slowdown.bounds.low) t.bounds = {};
    return t;
  }

  Evaluator& run_;
  race_settings settings_;
  trial best_ = {};
  std::map<plan, trial> done_;
};

}  // namespace comp
