// SPDX-License-Identifier: Apache-2.0
// A trainer whose best plan is known: times, losses, scores and profiles are made up from a `world`, with the noise
// that it asks for. No time passes. `bare_trainer` has the four required members; every capability is a layer on top,
// so any set of them is a type: `saving<stopping<bare_trainer>>`. `full_trainer` has all. What belongs to the machine
// (its noise, its drift, which plans it has seen, the bill) is not restored.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <moved_clock.hpp>
#include <numbers>
#include <unordered_set>
#include <utility>
#include <vector>

#include "costs.hpp"
#include "draw.hpp"
#include "losses.hpp"

#if __has_include(<comp/search/losses/loss_test.hpp>)
#define TRUTH_HAS_SENSITIVITY 1
#else
#define TRUTH_HAS_SENSITIVITY 0
#endif

namespace truth {

using comp::plan;
using comp::precision;
using comp::sample;

enum class fault : std::uint8_t {
  none,
  nan,
  zero,
  missing,
  inverse,  // what is fast is said to be slow
  off       // up to ten times off, either way
};

struct world {
  comp::op_graph graph = {};
  truth::costs costs = {};
  loss_model losses = {};
  std::vector<precision> precisions = {precision::fp32, precision::bf16};
  std::size_t batches = 100;       // per epoch
  double noise = 0.05;             // of a batch's seconds: standard deviation
  double drift = 0;                // of the machine's speed: how much slower and faster it gets
  double drift_period = 700;       // batches
  double length = 0;               // of a batch: standard deviation of the factor on its seconds, the data's
  double first_batch = 1;          // batches that a plan's very first one takes more
  std::vector<double> score = {};  // per operator: what sensitivity() truly is
  double score_off = 3;            // by up to this factor
  fault score_fault = fault::none;
  double profile_noise = 0.05;
  fault profile_fault = fault::none;
  std::int64_t weight_bytes = 1 << 20;
  std::int64_t device_bytes = 0;  // a plan that needs more is out of memory; 0: none
  std::uint64_t seed = 1;
  std::uint64_t machine = 0;  // the machine's noise, of the same world
};

/// The peak of memory that a plan needs.
inline std::int64_t bytes_of(const world& w, const plan& p) {
  std::int64_t all = w.weight_bytes;
  for (std::size_t i = 0; i < p.size(); ++i) {
    for (const comp::tensor_info& out : w.graph[i].outputs) {
      std::int64_t elements = 1;
      for (const auto extent : out.shape) elements *= extent;
      all += elements * comp::traits(p[i]).bytes;
    }
  }
  return all;
}

/// What a trainer did, in true seconds: no noise, no drift, and batches of equal length.
struct bill {
  double seconds = 0;
  std::uint64_t batches = 0, profiles = 0, scorings = 0;
  std::uint64_t diverged = 0;  // longest run of batches while a late divergence had at least doubled the loss
  std::uint64_t diverged_now = 0;
};

class bare_trainer {
 public:
  explicit bare_trainer(world given)
      : world_{std::move(given)},
        machine_{mixed(world_.seed, 1 + world_.machine)},
        law_{world_.losses.wander, world_.batches},
        phase_{machine_.between(0, 2 * std::numbers::pi)} {
    weights_.key = world_.seed;
    set_precision(plan{world_.graph.size()});
  }

  const comp::op_graph& graph() const { return world_.graph; }
  void set_precision(const plan& p) {
    if (!now_.empty() && now_ == p) return;
    now_ = p;
    seconds_ = world_.costs(world_.graph, p);
    effect_ = effect_of(world_.losses, p);
    bytes_ = bytes_of(world_, p);
  }
  sample run_epoch() { return train(world_.batches, {}); }
  sample run_batch() { return train(1, {}); }

  const truth::bill& billed() const { return bill_; }
  const state& weights() const { return weights_; }
  const world& truth() const { return world_; }
  const plan& now() const { return now_; }

 protected:
  sample train(std::size_t batches, const comp::stop_predicate& stop) {
    sample got{.loss = 0};
    got.losses.assign(world_.losses.losses, 0);
    got.peak_bytes = bytes_;
    for (std::size_t b = 0; b < batches; ++b) {
      step(got);
      if (stop && stop(got)) break;
    }
    return got;
  }
  // Work beside training that takes as long as `batches` batches under the current plan.
  void work(double batches) { take(batches * seconds_); }

  world world_;
  draw machine_;
  plan now_;
  state weights_;
  truth::bill bill_;

 private:
  void take(double seconds) {
    bill_.seconds += seconds;
    moved_clock::pass(seconds);
  }
  void step(sample& got) {
    if (world_.device_bytes > 0 && bytes_ > world_.device_bytes) throw comp::out_of_memory{"the device is full"};
    const std::uint64_t at = weights_.step;
    const double first = seen_.insert(now_).second ? 1 + world_.first_batch : 1;
    const double turn = static_cast<double>(bill_.batches) / world_.drift_period;
    const double speed = std::exp(world_.drift * std::sin(2 * std::numbers::pi * turn + phase_));
    const double length = factor_of(mixed(world_.seed + 2, at), world_.length);
    const double seconds = seconds_ * first * speed * length * machine_.factor(world_.noise);
    const double before = weights_.progress / static_cast<double>(world_.batches);
    const double loss = trained(world_.losses, law_, effect_, static_cast<double>(world_.batches), world_.seed + 3,
                                machine_.normal(), weights_);
    take(seconds_ * first);
    ++bill_.batches;
    bill_.diverged_now = weights_.late >= 1 ? bill_.diverged_now + 1 : 0;
    bill_.diverged = std::max(bill_.diverged, bill_.diverged_now);
    got.curve.push_back(loss);
    got.batch_seconds.push_back(seconds);
    got.seconds += seconds;
    ++got.batches;
    const double weight = 1 / static_cast<double>(got.batches);
    got.loss += (loss - got.loss) * weight;
    for (std::size_t i = 0; i < got.losses.size(); ++i) {  // they grow and fall, and their sum is the loss
      const double other = (i % 2 == 0 ? 1 : -1) * (1 + 0.02 * before);
      got.losses[i] += (loss / static_cast<double>(got.losses.size()) + other - got.losses[i]) * weight;
    }
  }

  wander_law law_;
  double phase_ = 0, seconds_ = 0;
  effect effect_;
  std::int64_t bytes_ = 0;
  std::unordered_set<plan> seen_;
};

template <class Trainer>
struct saving : Trainer {
  using Trainer::Trainer;
  state save() const { return this->weights_; }
  void restore(const state& s) { this->weights_ = s; }
};

template <class Trainer>
struct stopping : Trainer {
  using Trainer::run_epoch;
  using Trainer::Trainer;
  sample run_epoch(const comp::stop_predicate& stop) { return this->train(this->world_.batches, stop); }
};

template <class Trainer>
struct choosing : Trainer {
  using Trainer::Trainer;
  std::vector<precision> supported_precisions() const { return this->world_.precisions; }
};

template <class Trainer>
struct counting : Trainer {
  using Trainer::Trainer;
  std::uint64_t batches_per_epoch() const { return this->world_.batches; }
};

template <class Trainer>
struct perturbing : Trainer {
  using Trainer::Trainer;
  void perturb(std::uint64_t seed) { this->weights_.key = mixed(this->weights_.key, seed); }
};

/// A profile takes as long as two batches. NaN, zero and missing entries are for what should not trust it.
template <class Trainer>
struct profiling : Trainer {
  using Trainer::Trainer;
  std::vector<comp::op_time> profile() {
    ++this->bill_.profiles;
    this->work(2);
    const world& w = this->world_;
    std::vector<comp::op_time> times;
    for (std::size_t i = 0; i < w.graph.size(); ++i) {
      double seconds = w.costs.op[i][static_cast<std::size_t>(this->now_[i])];
      seconds *= this->machine_.factor(w.profile_noise);
      if (w.profile_fault == fault::inverse) {
        const auto& all = w.costs.op[i];
        seconds = all[0] * all[0] / all[static_cast<std::size_t>(this->now_[i])];
      }
      if (w.profile_fault == fault::off) {
        const std::uint64_t key = mixed(mixed(w.seed + 5, i), static_cast<std::uint64_t>(this->now_[i]));
        seconds *= std::pow(10.0, 2 * uniform_of(key) - 1);
      }
      if (w.profile_fault == fault::nan && i % 3 == 0) seconds = std::numeric_limits<double>::quiet_NaN();
      if (w.profile_fault == fault::zero) seconds = 0;
      times.push_back({seconds / 3, 2 * seconds / 3});
    }
    if (w.profile_fault == fault::missing) times.resize(times.size() / 2);
    return times;
  }
};

#if TRUTH_HAS_SENSITIVITY
/// Scores are off by a factor that belongs to the operator: a second pass says the same. A pass takes as long as three
/// batches.
template <class Trainer>
struct scoring : Trainer {
  using Trainer::Trainer;
  std::vector<comp::op_error> sensitivity(precision low) {
    ++this->bill_.scorings;
    this->work(3);
    const world& w = this->world_;
    std::vector<comp::op_error> errors;
    for (std::size_t i = 0; i < w.graph.size(); ++i) {
      const double off = std::pow(w.score_off, 2 * uniform_of(mixed(w.seed + 4, i)) - 1);
      double error = (w.score.empty() ? 1.0 : w.score[i]) * comp::traits(low).half_ulp * off;
      if (w.score_fault == fault::nan && i % 3 == 0) error = std::numeric_limits<double>::quiet_NaN();
      if (w.score_fault == fault::zero) error = 0;
      errors.push_back({error, 1.5 * error});
    }
    if (w.score_fault == fault::missing) errors.resize(errors.size() / 2);
    return errors;
  }
};
#else
template <class Trainer>
using scoring = Trainer;
#endif

using full_trainer = perturbing<scoring<profiling<counting<choosing<stopping<saving<bare_trainer>>>>>>>;

/// FP8 is for what the training keeps alone.
struct keeping_trainer : full_trainer {
  using full_trainer::full_trainer;
  bool supports(const comp::op_info& op, precision p) const { return op.is_state || p != precision::fp8_e4m3; }
};

}  // namespace truth
