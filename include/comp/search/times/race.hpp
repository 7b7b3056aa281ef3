// SPDX-License-Identifier: Apache-2.0
// Times plans in turns, a batch of each per round. Only ratios of batches of the same round are compared
// (core/statistics.hpp), so that a drift of the machine hits all plans alike. Every second round runs backwards, so
// that no plan always comes first. If batches differ in length, all plans of a round run the same one. Plans that are
// clearly slower leave, and the race ends when it is decided.
// Batches of plans that are known to train count as training; otherwise all of them are undone when the race ends.
// If a batch fails, or its loss is not finite or explodes, the data may be at fault, or the plan, or a state that an
// earlier plan damaged. So FP32 trains all batches since the last sound state again, and the race goes on from there.
#pragma once

#include <algorithm>
#include <comp/core/statistics.hpp>
#include <comp/search/losses/reference_run.hpp>
#include <comp/search/losses/sound_state.hpp>
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
  bool as_trained = false;    // steps run compiled, if the training after the search runs them so
};

/// Runs rounds among racers. Losses are not judged.
class race {
 public:
  race(evaluator& run, stage where, const race_settings& settings, std::size_t max_rounds, race_batches batches = {})
      : run_{run}, stage_{where}, settings_{settings}, max_rounds_{max_rounds}, batches_{batches} {}

  /// Runs the race. The first racer is the reference and leaves only when its rounds are over. Of candidates
  /// (stage::times) clearly slower ones stop running, and the race ends when each is decided against the reference. In
  /// a contest only racers that are hopeless against the reference leave, and the race ends when the fastest is clear.
  void run(std::vector<racer>& racers) {
    std::optional<switch_on> compiled;
    if (batches_.as_trained) compiled.emplace([this](bool on) { (void)run_.run_compiled(on); });
    start_ = run_.save();
    for (std::size_t round = 0; round < max_rounds_ && !is_decided(racers, round); ++round) {
      round_start_ = batches_.same_batches ? std::optional{run_.save()} : std::nullopt;
      bool first = true;
      for (std::size_t i = 0; i < racers.size(); ++i) {
        racer& r = racers[round % 2 == 0 ? i : racers.size() - 1 - i];
        if (r.has_left || round >= r.rounds_at_most) continue;
        if (round_start_ && !std::exchange(first, false)) run_.restore(*round_start_);
        if (round_start_ && !run_.has_run(r.plan)) {
          run_batch(racers, r, true);  // the first time, run_batch() times a later batch
          run_.restore(*round_start_);
          if (r.has_left) continue;
        }
        run_batch(racers, r, false);
      }
      for (std::size_t i = 1; i < racers.size(); ++i) {
        if (!racers[i].has_left && must_leave(racers, racers[i])) racers[i].has_left = true;
      }
    }
    if (!batches_.trains) run_.restore(start_);
  }

 private:
  void run_batch(std::vector<racer>& racers, racer& r, bool warms_up) {
    const unchecked_batches before = run_.unchecked();
    const bool is_fp32 = r.plan == run_.fp32();
    const checkpoint sound = before.from != nullptr ? *before.from : is_fp32 ? checkpoint{} : run_.save();
    const trial t = run_.run_batch(stage_, r.plan, r.label);
    r.peak_bytes = std::max(r.peak_bytes, t.sample.peak_bytes);
    double seconds = t.sample.seconds;
    if (!t.sample.ok() && (t.sample.status == status::out_of_memory || !run_.restores())) {
      remove(r, t.sample.status);
      run_.restore(start_);
    } else if (!t.sample.ok() || detail::ends_badly(run_.log(), t.sample)) {
      if (is_fp32 && before.from == nullptr) {  // the trainer or the data is at fault
        if (!t.sample.ok() && batches_.as_trained) return remove(r, t.sample.status);
        require_trained(run_, t.sample, 0);
      } else if (!run_.restores()) {
        if (run_.rejects(r.plan)) remove(r, status::not_finite);
      } else {
        seconds = answer_bad_batch(racers, r, t.sample, before, sound);
      }
    }
    if (!warms_up && !r.has_left) r.seconds.push_back(seconds);
  }

  // `bad`: a batch that `r` ran after those of `before`; it failed, or its loss is not finite or explodes. FP32 trains
  // all of them again from `sound`, and the trainer is left after them. If FP32 loses the batch, too, the data is at
  // fault. If `r` alone loses it again, it is counted, or `r` is removed because it damages its weights. If `r` trains
  // it from FP32's state, the last plan before had damaged the state and is removed; or `r` itself, if it was that plan
  // or threw. Returns: the seconds of the batch when it was repeated.
  double answer_bad_batch(std::vector<racer>& racers, racer& r, const sample& bad, const unchecked_batches& before,
                          const checkpoint& sound) {
    const std::size_t batches = bad.ok() ? std::max(run_.unchecked().count, before.count + 1) - before.count : 1;
    checkpoint from = sound, to = start_;  // a recalled run leaves the trainer as it is
    const trial fp32 =
        run_.run_and_record(stage_, run_.fp32(), "fp32 in place of a bad batch", [&](const trial& begun) {
          sample all;
          run_.restore(sound);
          run_.train(begun, run_.fp32(), before.count, all, detail::never_cut);
          from = run_.save();
          run_.train(begun, run_.fp32(), before.count + batches, all, detail::never_cut);
          to = run_.save();
          return all;
        });
    run_.restore(to);
    if (fp32.sample.status == status::failed) {
      if (!batches_.as_trained) require_trained(run_, fp32.sample, fp32.sample.batches);
      remove(racers.front(), status::failed);
      return bad.seconds;
    }
    if (round_start_) round_start_ = from;
    if (detail::ends_badly(run_.log(), fp32.sample)) return bad.seconds;  // the data is at fault
    if (r.plan == run_.fp32()) {
      remove_damaging(racers, before.low);
      return fp32.sample.seconds / static_cast<double>(fp32.sample.batches);
    }
    const trial second_try = run_.run_and_record(stage_, r.plan, "a bad batch again", [&](const trial& begun) {
      sample again;
      run_.restore(from);
      run_.train(begun, r.plan, batches, again, detail::never_cut);
      if (!detail::ends_badly(run_.log(), again)) return again;
      const detail::state_probe after_it = detail::probe_state(run_, begun);
      run_.restore(to);
      if (detail::is_damaged(after_it, detail::probe_state(run_, begun), run_.log())) again.status = status::diverged;
      return again;
    });
    run_.restore(to);
    if (!second_try.sample.ok()) {
      remove(r, second_try.sample.status == status::diverged ? status::not_finite : second_try.sample.status);
    } else if (detail::ends_badly(run_.log(), second_try.sample)) {
      ++r.lost;
    } else if (!bad.ok() || before.low.empty() || before.low == r.plan) {
      remove(r, bad.ok() ? status::not_finite : bad.status);
    } else {
      remove_damaging(racers, before.low);
    }
    return second_try.sample.seconds / static_cast<double>(batches);
  }

  // Removes the racer whose plan damaged the state. The plan may have trained before this race.
  void remove_damaging(std::vector<racer>& racers, const plan& damaging) {
    run_.reject(damaging);
    for (racer& r : racers) {
      if (r.plan == damaging) remove(r, status::not_finite);
    }
  }
  void remove(racer& r, status why) {
    if (why != status::out_of_memory) run_.reject(r.plan);
    r.status = why;
    r.has_left = true;
  }

  bool is_contest() const { return stage_ == stage::contest; }
  bool stays_to_end(const racer& r) const { return !r.has_left && r.rounds_at_most >= max_rounds_; }
  const racer& fastest_racer(const std::vector<racer>& racers) const {
    const auto first = std::find_if(racers.begin(), racers.end(), [&](const racer& r) { return stays_to_end(r); });
    const racer* best = first == racers.end() ? &racers.front() : &*first;
    for (const racer& r : racers) {
      if (stays_to_end(r) && median(r.seconds) < median(best->seconds)) best = &r;
    }
    return *best;
  }

  bool must_leave(const std::vector<racer>& racers, const racer& r) const {
    const racer& opponent = is_contest() ? racers.front() : fastest_racer(racers);
    if (&opponent == &r) return false;
    const std::size_t rounds = std::min(r.seconds.size(), opponent.seconds.size());
    if (rounds < settings_.min_rounds) return is_always_hopeless(r, opponent, rounds);
    const auto slowdown = compare_paired(r.seconds, opponent.seconds);
    return slowdown.ratio > settings_.hopeless || (!is_contest() && slowdown.clearly_faster());
  }

  // A single slow batch may be noise, so of few rounds each has to be hopeless.
  bool is_always_hopeless(const racer& r, const racer& other, std::size_t rounds) const {
    for (std::size_t i = 0; i < rounds; ++i) {
      if (r.seconds[i] <= settings_.hopeless * other.seconds[i]) return false;
    }
    return rounds >= 2;
  }

  bool is_decided(const std::vector<racer>& racers, std::size_t rounds) const {
    const auto count = std::count_if(racers.begin(), racers.end(),
                                     [&](const racer& r) { return !r.has_left && rounds < r.rounds_at_most; });
    if (count <= 1) return rounds > 0;
    if (rounds < settings_.min_rounds) return false;
    if (run_.times_are_modelled()) return true;
    const racer& opponent = is_contest() ? fastest_racer(racers) : racers.front();
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
  std::optional<checkpoint> round_start_ = {};  // if all plans of a round run the same batch
};

}  // namespace comp
