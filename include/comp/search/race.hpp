// SPDX-License-Identifier: Apache-2.0
// Times plans in turns, a batch each per round, so that a drift of the machine hits all of them alike; every second
// round runs backwards. Plans that are clearly slower leave, and the race ends when it is decided. What is compared are
// ratios of batches of the same round (core/statistics.hpp), never times of different moments. Where batches differ in
// length all plans of a round run the same one.
// Batches of plans that are known to train count as training; else all of them are undone when the race ends. A loss
// that is not finite is blamed on a plan only when it comes from the common start: else another plan may have spoilt
// the weights.
#pragma once

#include <algorithm>
#include <comp/core/statistics.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

struct racer {
  comp::plan plan = {};
  std::string label = {};
  std::vector<double> seconds = {};  // one per round that it ran
  std::size_t rounds_at_most = std::numeric_limits<std::size_t>::max();
  std::int64_t peak_bytes = 0;
  comp::status status = comp::status::ok;
  bool out = false;         // left the race: failed or clearly slower
  bool rule_based = false;  // what rules give without a search
};

/// What a race may do with the training.
struct race_grounds {
  bool trains = false;        // its plans are known to train: their batches are kept
  bool same_batches = false;  // batches differ in length: all of a round run the same
};

/// Runs rounds among racers of one stage. Losses are not looked at.
class race {
 public:
  race(evaluator& run, stage where, const race_settings& settings, std::size_t max_rounds, race_grounds grounds = {})
      : run_{run}, stage_{where}, settings_{settings}, max_rounds_{max_rounds}, grounds_{grounds} {}

  /// The first racer is the reference and leaves only when its rounds are over. `leave`: clearly slower racers stop
  /// running, and the race ends when each is decided against the reference; else it ends when the fastest is clearly
  /// so, and only those that are hopeless against the reference leave.
  void operator()(std::vector<racer>& racers, bool leave) {
    start_ = run_.save();
    fresh_ = true;
    for (std::size_t round = 0; round < max_rounds_ && !decided(racers, round, leave); ++round) {
      const auto before = grounds_.same_batches ? std::optional{run_.save()} : std::nullopt;
      bool first = true;
      for (std::size_t i = 0; i < racers.size(); ++i) {
        racer& r = racers[round % 2 == 0 ? i : racers.size() - 1 - i];
        if (r.out || round >= r.rounds_at_most) continue;
        if (before && !std::exchange(first, false)) run_.restore(*before);
        if (before && !run_.ran(r.plan)) {
          (void)run_.batch(stage_, r.plan, r.label);  // cold, it times its second batch: another one
          run_.restore(*before);
        }
        run_batch(r);
      }
      for (std::size_t i = 1; i < racers.size(); ++i) {
        if (!racers[i].out && drops(racers, racers[i], leave)) racers[i].out = true;
      }
    }
    if (!grounds_.trains) run_.restore(start_);
  }

 private:
  void run_batch(racer& r) {
    trial t = run_.batch(stage_, r.plan, r.label);
    if (t.sample.status == status::not_finite && run_.restores() && !fresh_) {
      to_start();
      t = run_.batch(stage_, r.plan, r.label);
    }
    fresh_ = false;
    r.peak_bytes = std::max(r.peak_bytes, t.sample.peak_bytes);
    if (t.sample.ok() || t.sample.status == status::not_finite) {
      r.seconds.push_back(t.sample.seconds);
    }
    if (!t.sample.ok()) {
      r.status = t.sample.status;
      r.out = true;
      to_start();
    }
  }

  void to_start() {
    run_.restore(start_);
    fresh_ = true;
  }

  bool running(const racer& r) const { return !r.out && r.rounds_at_most >= max_rounds_; }
  const racer& fastest(const std::vector<racer>& racers) const {
    const auto first = std::find_if(racers.begin(), racers.end(), [&](const racer& r) { return running(r); });
    const racer* best = first == racers.end() ? &racers.front() : &*first;
    for (const racer& r : racers) {
      if (running(r) && median(r.seconds) < median(best->seconds)) best = &r;
    }
    return *best;
  }

  bool drops(const std::vector<racer>& racers, const racer& r, bool leave) const {
    const racer& other = leave ? fastest(racers) : racers.front();
    if (&other == &r) return false;
    const std::size_t rounds = std::min(r.seconds.size(), other.seconds.size());
    if (rounds < settings_.min_rounds) return always_hopeless(r, other, rounds);
    const auto against = compare_paired(r.seconds, other.seconds);
    return against.ratio > settings_.hopeless || (leave && against.clearly_faster());
  }

  // A single slow batch is noise: with few rounds each of them must say so.
  bool always_hopeless(const racer& r, const racer& other, std::size_t rounds) const {
    for (std::size_t i = 0; i < rounds; ++i) {
      if (r.seconds[i] <= settings_.hopeless * other.seconds[i]) return false;
    }
    return rounds >= 2;
  }

  bool decided(const std::vector<racer>& racers, std::size_t rounds, bool leave) const {
    const auto left = std::count_if(racers.begin(), racers.end(),
                                    [&](const racer& r) { return !r.out && rounds < r.rounds_at_most; });
    if (left <= 1) return rounds > 0;
    if (rounds < settings_.min_rounds) return false;
    const racer& other = leave ? racers.front() : fastest(racers);
    return std::all_of(racers.begin(), racers.end(), [&](const racer& r) {
      if (r.out || &r == &other || rounds >= r.rounds_at_most) return true;
      const auto against = compare_paired(other.seconds, r.seconds);
      return against.clearly_faster() || against.clearly_slower();
    });
  }

  evaluator& run_;
  stage stage_;
  race_settings settings_;
  std::size_t max_rounds_;
  race_grounds grounds_;
  evaluator::place start_ = {};
  bool fresh_ = true;  // no batch was trained since the common start
};

}  // namespace comp
