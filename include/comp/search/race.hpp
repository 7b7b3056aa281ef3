// SPDX-License-Identifier: Apache-2.0
// Times plans in turns, a batch each per round, so that a drift of the machine hits all of them alike; every second
// round runs backwards. Plans that are clearly slower leave, and the race ends when it is decided. What is compared are
// ratios of batches of the same round (core/statistics.hpp), never times of different moments.
#pragma once

#include <algorithm>
#include <comp/core/statistics.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace comp {

struct racer {
  comp::plan plan = {};
  std::string label = {};
  std::vector<double> seconds = {};  // one per round that it ran
  std::int64_t peak_bytes = 0;
  comp::status status = comp::status::ok;
  bool out = false;  // left the race: failed or clearly slower
};

/// Runs rounds among racers of one stage. The state moves on from batch to batch; losses are not looked at.
template <class Evaluator>
class race {
 public:
  race(Evaluator& run, stage where, const race_settings& settings, std::size_t max_rounds)
      : run_{run}, stage_{where}, settings_{settings}, max_rounds_{max_rounds} {}

  /// `leave`: clearly slower racers stop running. The first racer is the reference and never leaves.
  void operator()(std::vector<racer>& racers, bool leave) {
    run_.to_start();
    for (racer& r : racers) run_.warm_up(r.plan);
    for (std::size_t round = 0; round < max_rounds_ && !decided(racers, round); ++round) {
      for (std::size_t i = 0; i < racers.size(); ++i) {
        racer& r = racers[round % 2 == 0 ? i : racers.size() - 1 - i];
        if (!r.out) lap(r);
      }
      for (std::size_t i = 1; i < racers.size(); ++i) {
        if (!racers[i].out && drops(racers, racers[i], leave)) racers[i].out = true;
      }
    }
  }

 private:
  void lap(racer& r) {
    const trial t = run_.batch(stage_, r.plan, r.label);
    r.peak_bytes = std::max(r.peak_bytes, t.sample.peak_bytes);
    if (t.sample.ok() || t.sample.status == status::not_finite) {
      r.seconds.push_back(t.sample.seconds);
    }
    if (!t.sample.ok()) {
      r.status = t.sample.status;
      r.out = true;
      run_.to_start();
    }
  }

  static const racer& fastest(const std::vector<racer>& racers) {
    const racer* best = &racers.front();
    for (const racer& r : racers) {
      if (!r.out && median(r.seconds) < median(best->seconds)) best = &r;
    }
    return *best;
  }

  bool drops(const std::vector<racer>& racers, const racer& r, bool leave) const {
    const racer& best = fastest(racers);
    if (&best == &r || r.seconds.size() < 2) return false;
    const auto against = compare_paired(r.seconds, best.seconds);
    if (against.ratio > settings_.hopeless) return true;
    return leave && r.seconds.size() >= settings_.min_rounds && against.bounds.low > 1;
  }

  // Decided: nobody but the reference is left, or every other racer is clearly faster or slower than the reference.
  bool decided(const std::vector<racer>& racers, std::size_t rounds) const {
    const auto left = std::ranges::count_if(racers, [](const racer& r) { return !r.out; });
    if (left <= 1) return rounds > 0;
    if (rounds < settings_.min_rounds) return false;
    return std::ranges::all_of(racers.begin() + 1, racers.end(), [&](const racer& r) {
      if (r.out) return true;
      const auto against = compare_paired(racers.front().seconds, r.seconds);
      return against.clearly_faster() || against.clearly_slower();
    });
  }

  Evaluator& run_;
  stage stage_;
  race_settings settings_;
  std::size_t max_rounds_;
};

}  // namespace comp
