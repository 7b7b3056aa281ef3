// SPDX-License-Identifier: Apache-2.0
// What a training's loss truly does: a curve, noise that belongs to the batch (the same for every plan), harm of low
// operators, and how a run drifts from the next one: by the machine, or as chaos that a bit-equal repeat cannot show.
// Not here: times (costs.hpp) and what a search is given of all this (trainer.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/plan.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "draw.hpp"

namespace truth {

/// The weights, as far as a loss shows them, and the place in the data.
struct state {
  std::uint64_t step = 0;     // batches trained: the place in the data
  double progress = 0;        // batches that the training truly got on by
  double damage = 0;          // of the scale of the loss: what cumulative harm has done so far
  double slow = 0;            // of the scale of the loss: the same of harm that takes hundreds of batches
  double wander = 0;          // of the scale of the loss: how far this run is from the curve
  double late = 0;            // of the scale of the loss: a divergence under way
  std::uint64_t exposed = 0;  // batches with an operator low that makes training diverge late
  std::uint64_t key = 0;      // what the last bits of the weights stand for: any change of these is another path
  friend bool operator==(const state&, const state&) = default;
};

/// Two operators that harm only together, or only apart, and by how much of the scale of the loss.
struct pair_harm {
  std::size_t first = 0, second = 0;
  double harm = 0;
};

enum class batch_noise : std::uint8_t {
  relative,  // lognormal factor of a loss that is positive
  additive   // of the scale, for losses that may have any sign
};

struct loss_model {
  std::function<double(double)> curve = [](double epoch) { return 0.5 + 1.5 * std::exp(-epoch / 5); };
  std::function<double(double)> scale = {};  // what all noise and harm is a part of; empty: |curve|
  batch_noise kind = batch_noise::relative;
  double noise = 0.2;                   // of a batch, by the data: standard deviation
  std::vector<double> immediate = {};   // harm per operator: the loss is this part higher while it is low
  std::vector<double> cumulative = {};  // harm per operator: the same, but reached within `settle` batches and kept
  std::vector<pair_harm> pairs = {};    // cumulative
  std::vector<pair_harm> apart = {};    // cumulative: while the first is low and the second is not
  std::vector<double> slow = {};        // harm per operator: as cumulative, but reached within `slow_settle` batches
  double slow_settle = 300;             // batches
  comp::precision slow_in = comp::precision::fp32;  // the one low precision that does the slow harm; FP32: each does
  double lost = 0;                                  // part of the batches whose loss is NaN under any plan: by the data
  std::vector<std::uint64_t> lost_at = {};          // of these batches, too
  std::vector<double> lost_low = {};  // per operator: part of the batches whose loss is NaN while it is low
  double settle = 8;                  // batches
  double wander = 0;                  // standard deviation of an epoch's mean that two runs from one state have each
  bool chaos = false;                 // true: from the bits of the weights; false: from the machine
  std::vector<std::size_t> diverging = {};  // operators that make a training diverge late
  std::uint64_t onset = 0;                  // batches with one of them low before that begins
  double growth = 0.05;                     // of it, per batch
  std::vector<std::size_t> sticking = {};   // operators that keep the loss from falling below `stuck` times `floor`
  double stuck = 7, floor = 0;
  std::size_t losses = 0;  // how many a sample has beside their mean
};

/// What a plan does to a training.
struct effect {
  double immediate = 0, cumulative = 0, slow = 0, lost = 0;
  bool diverges = false, sticks = false;
  std::uint64_t hash = 0;
  bool harmful() const { return immediate > 0 || cumulative > 0 || slow > 0 || lost > 0 || diverges || sticks; }
};

inline effect effect_of(const loss_model& model, const comp::plan& p) {
  const auto low = [&](std::size_t i) { return comp::is_low(p[i]); };
  effect total;
  for (std::size_t i = 0; i < model.immediate.size(); ++i) total.immediate += low(i) ? model.immediate[i] : 0;
  for (std::size_t i = 0; i < model.cumulative.size(); ++i) total.cumulative += low(i) ? model.cumulative[i] : 0;
  for (const pair_harm& pair : model.pairs) total.cumulative += low(pair.first) && low(pair.second) ? pair.harm : 0;
  for (const pair_harm& pair : model.apart) total.cumulative += low(pair.first) && !low(pair.second) ? pair.harm : 0;
  const bool each = model.slow_in == comp::precision::fp32;
  for (std::size_t i = 0; i < model.slow.size(); ++i)
    total.slow += low(i) && (each || p[i] == model.slow_in) ? model.slow[i] : 0;
  for (std::size_t i = 0; i < model.lost_low.size(); ++i) total.lost += low(i) ? model.lost_low[i] : 0;
  total.diverges = std::any_of(model.diverging.begin(), model.diverging.end(), low);
  total.sticks = std::any_of(model.sticking.begin(), model.sticking.end(), low);
  total.hash = std::hash<comp::plan>{}(p);
  return total;
}

/// A run's wander: pulled back within an epoch, pushed on at each batch.
struct wander_law {
  double keep = 1, push = 0;
  wander_law() = default;
  /// Such that the mean of `batches` batches, from 0 on, has the standard deviation `deviation`.
  wander_law(double deviation, std::size_t batches) : keep{std::exp(-1.0 / static_cast<double>(batches))} {
    double variance = 0;
    for (std::size_t from = 0; from < batches; ++from) {
      const double reach =
          (1 - std::pow(keep, static_cast<double>(batches - from))) / (1 - keep) / static_cast<double>(batches);
      variance += reach * reach;
    }
    push = deviation / std::sqrt(variance);
  }
};

/// Trains one batch: moves `weights` on and returns the batch's loss. `epoch`: batches of one; `pushed`: standard
/// normal, what the machine adds if it is the machine that wanders.
inline double trained(const loss_model& model, const wander_law& law, const effect& under, double epoch,
                      std::uint64_t seed, double pushed, state& weights) {
  const double at = weights.progress / epoch, curve = model.curve(at);
  const double scale = model.scale ? model.scale(at) : std::abs(curve);
  const double level =
      curve + scale * (under.immediate + weights.damage + weights.slow + std::expm1(weights.wander) + weights.late);
  const std::uint64_t batch = mixed(seed, weights.step);
  const double loss = model.kind == batch_noise::relative ? level * factor_of(batch, model.noise)
                                                          : level + scale * model.noise * normal_of(batch);
  weights.key = mixed(weights.key, under.hash ^ weights.step);
  if (model.chaos) pushed = normal_of(weights.key);
  weights.wander = law.keep * weights.wander + law.push * pushed;
  weights.damage += (under.cumulative - weights.damage) / model.settle;
  weights.slow += (under.slow - weights.slow) / model.slow_settle;
  if (under.diverges && ++weights.exposed > model.onset) {
    weights.late = std::max(weights.late, 0.02) * (1 + model.growth);
  } else {
    weights.late *= 0.9;
  }
  if (weights.late > 1e9) weights.late = std::numeric_limits<double>::infinity();
  const bool lost = uniform_of(mixed(batch, 1)) < model.lost || uniform_of(mixed(batch, 2)) < under.lost ||
                    std::find(model.lost_at.begin(), model.lost_at.end(), weights.step) != model.lost_at.end();
  ++weights.step;
  if (lost) return std::numeric_limits<double>::quiet_NaN();  // the trainer skips the step
  if (!under.sticks || curve > model.stuck * model.floor) ++weights.progress;
  return loss;
}

}  // namespace truth
