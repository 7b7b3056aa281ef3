// SPDX-License-Identifier: Apache-2.0
// Times plans in turns, a batch of each per round. Only ratios of batches of the same round are compared
// (core/statistics.hpp), so that a drift of the machine hits all plans alike. Every second round runs backwards, so
// that no plan always comes first. Where batches differ in length, all plans of a round run the same one. Plans that
// are clearly slower leave, and the race ends when it is decided.
// Batches of plans that are known to train count as training; otherwise all of them are undone when the race ends.
// A batch is lost where its loss is not finite. The data may be at fault, so FP32 trains the same batches from the
// race's start: only what FP32 does not lose is counted against a plan. Two lost batches in a row show that the weights
// are spoilt: the race then begins anew without the plan that spoilt them.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/evaluator.hpp>
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
  std::vector<double> seconds = {};  // [s], one for each round that it ran
  std::size_t rounds_at_most = std::numeric_limits<std::size_t>::max();
  std::int64_t peak_bytes = 0;
  std::size_t lost = 0;  // its lost batches that FP32 does not lose
  comp::status status = comp::status::ok;
  bool has_left = false;    // it left the race, because it failed or was clearly slower
  bool rule_based = false;  // it is a plan of rules, which a user has without a search
};

/// What a race may do with the training's state.
struct race_batches {
  bool trains = false;        // its plans are known to train, so their batches are kept
  bool same_batches = false;  // batches differ in length, so all plans of a round run the same one
  bool as_trained = false;    // steps run compiled, where the training after the search runs them so
};

/// Runs rounds among racers. Losses are not judged.
class race {
 public:
  race(evaluator& run, stage where, const race_settings& settings, std::size_t max_rounds, race_batches batches = {})
      : run_{run}, stage_{where}, settings_{settings}, max_rounds_{max_rounds}, batches_{batches} {}

  /// Runs the race. The first racer is the reference and leaves only when its rounds are over. `drop_slower`: true for
  /// candidates of a search: clearly slower ones stop running, and the race ends when each is decided against the
  /// reference. False for a contest: only racers that are hopeless against the reference leave, and the race ends when
  /// the fastest is clear.
  void run(std::vector<racer>& racers, bool drop_slower) {
    std::optional<compiled_steps<evaluator>> compiled;
    if (batches_.as_trained) compiled.emplace(run_);
    start_ = run_.save();
    lost_batches_.clear(), lost_in_a_row_ = 0, last_sound_ = nullptr;
    for (std::size_t round = 0; round < max_rounds_ && !decided(racers, round, drop_slower); ++round) {
      const auto round_start = batches_.same_batches ? std::optional{run_.save()} : std::nullopt;
      bool first = true;
      for (std::size_t i = 0; i < racers.size(); ++i) {
        racer& r = racers[round % 2 == 0 ? i : racers.size() - 1 - i];
        if (r.has_left || round >= r.rounds_at_most) continue;
        if (round_start && !std::exchange(first, false)) run_.restore(*round_start);
        if (round_start && !run_.has_run(r.plan)) {
          (void)run_.run_batch(stage_, r.plan,
                               r.label);  // the first time, run_batch() times a later batch
          run_.restore(*round_start);
        }
        run_batch(r);
      }
      for (std::size_t i = 1; i < racers.size(); ++i) {
        if (!racers[i].has_left && must_leave(racers, racers[i], drop_slower)) racers[i].has_left = true;
      }
    }
    count_own_losses();
    if (!batches_.trains) run_.restore(start_);
  }

 private:
  struct lost_batch {
    racer* by = nullptr;
    std::int64_t batch = 0;  // counted from the race's start
  };

  void run_batch(racer& r) {
    const trial t = run_.run_batch(stage_, r.plan, r.label);
    r.peak_bytes = std::max(r.peak_bytes, t.sample.peak_bytes);
    if (!t.sample.ok()) {
      remove(r, t.sample.status);
    } else {
      r.seconds.push_back(t.sample.seconds);
      lost_in_a_row_ = t.sample.not_finite > 0 ? lost_in_a_row_ + 1 : 0;
      if (lost_in_a_row_ > 0) lost_batches_.push_back({&r, run_.trained().batches - start_.trained.batches});
      if (lost_in_a_row_ > 1) {
        racer& first = *(lost_batches_.end() - 2)->by;
        if (data_lose_both()) {
          lost_in_a_row_ = 0;
          return;
        }
        remove(spoils_weights(first.plan) || last_sound_ == nullptr ? first : *last_sound_, status::not_finite);
        std::erase_if(lost_batches_, [](const lost_batch& l) { return l.by->has_left; });
      }
    }
    if (lost_in_a_row_ == 0) last_sound_ = t.sample.ok() ? &r : nullptr;
  }

  void remove(racer& r, status why) {
    r.status = why;
    r.has_left = true;
    lost_in_a_row_ = 0;
    run_.restore(start_);
  }

  // Returns: FP32's losses of the race's first batches. The trainer's state stays as it is.
  std::vector<double> repeat_with_fp32(std::int64_t batches) {
    const checkpoint here = run_.save();
    const trial t = run_.run(stage_, run_.fp32(), "lost batches again", [&](const trial& begun) {
      run_.restore(start_);
      sample fp32;
      run_.train(begun, run_.fp32(), static_cast<std::size_t>(batches), fp32, detail::never_cut);
      return fp32;
    });
    run_.record(t);
    run_.restore(here);
    return t.sample.curve;
  }
  // Returns: FP32's loss of that batch; nothing where FP32 did not run it.
  static std::optional<double> loss_of(const std::vector<double>& fp32, const lost_batch& l) {
    const auto at = static_cast<std::size_t>(std::max<std::int64_t>(l.batch, 1) - 1);
    return at < fp32.size() ? std::optional{fp32[at]} : std::nullopt;
  }
  // Returns: true where FP32 loses the last two lost batches, too, so that the data is at fault.
  bool data_lose_both() {
    if (!run_.restores()) return false;
    const lost_batch &one = *(lost_batches_.end() - 2), &two = lost_batches_.back();
    const std::vector<double> fp32 = repeat_with_fp32(two.batch);
    const auto loses = [&](const lost_batch& l) { return loss_of(fp32, l) && !std::isfinite(*loss_of(fp32, l)); };
    return loses(one) && loses(two);
  }

  // Returns: true where the second of two batches under `p` from the race's start is lost.
  bool spoils_weights(const plan& p) {
    run_.restore(start_);
    (void)run_.run_batch(stage_, p, "");
    return run_.run_batch(stage_, p, "").sample.not_finite > 0;
  }

  // Sets `lost` of the racers. FP32 trains the race's batches again, up to the last lost one, to see which of them it
  // loses, too.
  void count_own_losses() {
    if (lost_batches_.empty() || !run_.restores()) return;
    std::int64_t last = 0;
    for (const lost_batch& l : lost_batches_) last = std::max(last, l.batch);
    const std::vector<double> fp32 = repeat_with_fp32(last);
    for (const lost_batch& l : lost_batches_) {
      const auto loss = loss_of(fp32, l);
      l.by->lost += loss && std::isfinite(*loss) ? 1U : 0U;
    }
  }

  bool running(const racer& r) const { return !r.has_left && r.rounds_at_most >= max_rounds_; }
  const racer& fastest(const std::vector<racer>& racers) const {
    const auto first = std::find_if(racers.begin(), racers.end(), [&](const racer& r) { return running(r); });
    const racer* best = first == racers.end() ? &racers.front() : &*first;
    for (const racer& r : racers) {
      if (running(r) && median(r.seconds) < median(best->seconds)) best = &r;
    }
    return *best;
  }

  bool must_leave(const std::vector<racer>& racers, const racer& r, bool drop_slower) const {
    const racer& opponent = drop_slower ? fastest(racers) : racers.front();
    if (&opponent == &r) return false;
    const std::size_t rounds = std::min(r.seconds.size(), opponent.seconds.size());
    if (rounds < settings_.min_rounds) return always_hopeless(r, opponent, rounds);
    const auto slowdown = compare_paired(r.seconds, opponent.seconds);
    return slowdown.ratio > settings_.hopeless || (drop_slower && slowdown.clearly_faster());
  }

  // A single slow batch may be noise, so of few rounds each has to be hopeless.
  bool always_hopeless(const racer& r, const racer& other, std::size_t rounds) const {
    for (std::size_t i = 0; i < rounds; ++i) {
      if (r.seconds[i] <= settings_.hopeless * other.seconds[i]) return false;
    }
    return rounds >= 2;
  }

  bool decided(const std::vector<racer>& racers, std::size_t rounds, bool drop_slower) const {
    const auto running_count = std::count_if(racers.begin(), racers.end(),
                                             [&](const racer& r) { return !r.has_left && rounds < r.rounds_at_most; });
    if (running_count <= 1) return rounds > 0;
    if (rounds < settings_.min_rounds) return false;
    if (run_.times_are_modelled()) return true;
    const racer& opponent = drop_slower ? racers.front() : fastest(racers);
    return std::all_of(racers.begin(), racers.end(), [&](const racer& r) {
      if (r.has_left || &r == &opponent || rounds >= r.rounds_at_most) return true;
      const auto comparison = compare_paired(opponent.seconds, r.seconds);
      return comparison.clearly_faster() || comparison.clearly_slower();
    });
  }

  evaluator& run_;
  stage stage_;
  race_settings settings_;
  std::size_t max_rounds_;
  race_batches batches_;
  checkpoint start_ = {};
  std::vector<lost_batch> lost_batches_ = {};
  std::size_t lost_in_a_row_ = 0;
  racer* last_sound_ = nullptr;  // the racer of the last batch that was not lost
};

}  // namespace comp
