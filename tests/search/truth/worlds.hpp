// SPDX-License-Identifier: Apache-2.0
// The worlds that the search's goals are measured in, one function each, drawn from a seed: no goal can be tuned to one
// graph. What a world does not say is harmless, and has 5% noise of batch times and a little of the loss.
// Not here: worlds for the guard of post-training (late_worlds.hpp), and what is counted (bench/search/truth.cpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/op_graph.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer.hpp"

namespace truth {

inline shape drawn_shape(draw& random) { return static_cast<shape>(random.below(3)); }

/// All operators harmless; the epochs have 40 to 160 batches.
inline world harmless(draw& random, const graph_settings& graph, const cost_settings& costs) {
  world w;
  w.graph = drawn_graph(random, graph);
  w.costs = drawn_costs(random, w.graph, costs);
  w.batches = 40 + random.below(121);
  w.seed = random.bits();
  w.losses.immediate.assign(w.graph.size(), 0);
  w.losses.cumulative.assign(w.graph.size(), 0);
  w.losses.settle = random.between(2, static_cast<double>(w.batches) / 6);
  w.losses.wander = 0.002;
  for (std::size_t i = 0; i < w.graph.size(); ++i) w.score.push_back(random.factor(0.5));
  return w;
}

/// Lets an operator raise the loss by `part`, at once or within some batches; its score stands out by a factor of 6.
inline void harm(world& w, draw& random, std::size_t op, double part) {
  (random.chance(0.5) ? w.losses.immediate : w.losses.cumulative)[op] = part;
  w.score[op] *= 6;
}

/// 10 to 30 operators of which low precision slows some, deny operators above all; batch times with `noise`.
inline world noisy_times(std::uint64_t seed, double noise) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 10 + random.below(21)};
  const cost_settings costs{.deny = {0.7, 1.3}, .other = {0.4, 0.9}, .slower = 0.05, .cast = random.between(0.02, 0.2)};
  world w = harmless(random, graph, costs);
  w.noise = noise;
  w.drift = random.between(0, 0.1);
  return w;
}

/// 12 operators, casts of 0.3 of a cheap one.
inline world small_dag(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{
      .shape = shape::dag, .operators = 12, .allow = 0.2, .deny = 0.4, .allow_least = 1, .allow_most = 3};
  const cost_settings costs{
      .deny = {0.5, 1.2}, .other = {0.4, 1}, .cast = 0.3, .rule = static_cast<cast_rule>(seed % 2)};
  world w = harmless(random, graph, costs);
  w.noise = 0.02;
  return w;
}

/// 500 operators; 20% of the deny operators raise the loss by 3% to 30%.
inline world large(std::uint64_t seed, std::size_t operators = 500) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = operators, .deny = 0.4, .deny_kinds = 5};
  world w = harmless(random, graph, {.deny = {0.3, 0.7}, .other = {0.5, 1}, .cast = 0.05});
  const auto denied = operators_of(w.graph, is_deny);
  for (const std::size_t op : random.some(denied, denied.size() / 5)) harm(w, random, op, random.between(0.03, 0.3));
  return w;
}

/// `count` allow operators of one kind, one of which raises the loss by 10% to 50%.
inline world one_of_a_kind(std::uint64_t seed, std::size_t count) {
  draw random{seed};
  std::vector<std::string> kinds;
  for (std::size_t i = 0; i < count; ++i) {
    kinds.push_back("allow.linear");
    if (random.chance(0.5)) kinds.push_back("relu");
    if (random.chance(0.15)) kinds.push_back("deny.norm");
  }
  const graph_settings graph{.shape = random.chance(0.5) ? shape::chain : shape::dag, .kinds = kinds};
  world w = harmless(random, graph, {.cast = 0.05});
  const auto allowed = operators_of(w.graph, is_allow);
  harm(w, random, allowed[random.below(allowed.size())], random.between(0.1, 0.5));
  return w;
}

/// Everything is faster low, and nothing harms; the loss of an epoch differs by 5% from run to run.
inline world noisy_losses(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 10 + random.below(11)};
  world w = harmless(random, graph, {.deny = {0.4, 0.8}, .other = {0.4, 0.8}, .cast = 0.02});
  w.losses.wander = 0.05;
  return w;
}

/// A deny operator that raises the loss by 5%; the loss of an epoch differs by 3% from run to run.
inline world raises_by_5_percent(std::uint64_t seed) {
  draw random{seed};
  graph_settings graph{.shape = drawn_shape(random), .operators = 10 + random.below(11), .deny = 0.4};
  world w = harmless(random, graph, {.deny = {0.4, 0.8}, .other = {0.4, 0.8}, .cast = 0.02});
  std::vector<std::size_t> denied = operators_of(w.graph, is_deny);
  if (denied.empty()) denied = {0};
  harm(w, random, denied[random.below(denied.size())], 0.05);
  w.losses.wander = 0.03;
  return w;
}

/// 46 operators, epochs of 10 batches that a repeat gives to the bit, and by 0.7% differently under any other plan or
/// rounding; in every second world a deny operator raises the loss by 5%.
inline world chaotic(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 46, .deny_kinds = 6};
  world w = harmless(random, graph, {.deny = {0.4, 0.8}, .other = {0.4, 0.8}, .cast = 0.05});
  w.batches = 10;
  w.losses.settle = 1;
  w.losses.chaos = true;
  w.losses.wander = 0.007;
  const auto denied = operators_of(w.graph, is_deny);
  if (seed % 2 == 1 && !denied.empty()) harm(w, random, denied[random.below(denied.size())], 0.05);
  return w;
}

/// All low is 1.19 times as fast; batches differ in length by 0.3, the same for whoever trains them.
inline world lengths(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 10 + random.below(11)};
  const range part{0.5, 0.8};
  world w = harmless(random, graph, {.allow = part, .deny = part, .other = part, .cast = 0.02});
  const plan fp32{w.graph.size()}, low{w.graph.size(), precision::bf16};
  const double slow = w.costs(w.graph, fp32), fast = w.costs(w.graph, low);
  w.costs.fixed = (slow - 1.19 * fast) / 0.19;  // (slow + fixed) / (fast + fixed) = 1.19
  w.noise = 0.02;
  w.length = 0.3;
  return w;
}

/// What users train: 20 to 60 operators, a tenth of the deny operators harmful, a plan's first batch slow.
inline world usual(std::uint64_t seed, std::size_t batches) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 20 + random.below(41)};
  world w = harmless(random, graph, {.slower = 0.05, .cast = 0.1, .fixed = 0.05});
  w.batches = batches;
  w.losses.settle = random.between(1, 5);
  w.first_batch = random.between(0.5, 2);
  const auto denied = operators_of(w.graph, is_deny);
  for (const std::size_t op : random.some(denied, denied.size() / 10)) harm(w, random, op, random.between(0.05, 0.3));
  return w;
}

/// Two pairs of operators that raise the loss by 10% to 30% when both are low, each harmless alone.
inline world pairs(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 16 + random.below(17)};
  world w = harmless(random, graph, {.deny = {0.4, 0.9}, .other = {0.5, 0.9}, .cast = 0.05});
  std::vector<std::size_t> all = operators_of(w.graph, [](const comp::op_info&) { return true; });
  all = random.some(all, 4);
  w.losses.pairs = {{all[0], all[1], random.between(0.1, 0.3)}, {all[2], all[3], random.between(0.1, 0.3)}};
  for (const std::size_t op : all) w.score[op] *= 3;
  return w;
}

/// 64 operators; the 32 with the highest scores each raise the loss, by 3% to 30%; scores are off by up to 3.
inline world sensitive(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 64, .deny_kinds = 6};
  world w = harmless(random, graph, {.deny = {0.4, 0.9}, .other = {0.5, 0.9}, .cast = 0.03});
  for (double& score : w.score) score = std::exp(2.5 * random.normal());
  std::vector<double> sorted = w.score;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < 64; ++i) {
    if (w.score[i] < sorted[32]) continue;
    auto& harms = random.chance(0.5) ? w.losses.immediate : w.losses.cumulative;
    harms[i] = random.between(0.03, 0.3);
  }
  return w;
}

enum class sign : std::uint8_t { negative, crossing, growing, several };

/// Gives losses that are no falling positive numbers: a critic's, which rises towards 0 or swings about it; a
/// generator's; a GAN's two.
inline void give_signs(loss_model& losses, sign which) {
  losses.kind = batch_noise::additive;
  losses.scale = [](double) { return 1.0; };
  if (which == sign::negative) losses.curve = [](double epoch) { return -0.6 - 2.4 * std::exp(-epoch / 8); };
  if (which == sign::crossing) {
    losses.curve = [](double epoch) { return std::exp(-epoch / 4) - 0.3 + 0.4 * std::sin(0.7 * epoch); };
  }
  if (which == sign::growing) losses.curve = [](double epoch) { return 0.7 + 0.15 * epoch; };
  if (which == sign::several) losses.curve = [](double epoch) { return 0.4 + 0.6 * std::exp(-epoch / 4); };
  losses.losses = which == sign::several ? 2 : 0;
}

/// The losses above; a deny operator raises them by 15% of their scale.
inline world signs(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 12 + random.below(9)};
  world w = harmless(random, graph, {.deny = {0.4, 0.8}, .other = {0.4, 0.8}, .cast = 0.03});
  give_signs(w.losses, static_cast<sign>(seed % 4));
  const auto denied = operators_of(w.graph, is_deny);
  if (!denied.empty()) harm(w, random, denied[random.below(denied.size())], 0.15);
  return w;
}

/// The same with an optimizer's two moments, each a tenth to a third of a batch and faster low. If `batches` is above 0
/// the second one raises the loss by `part` while it is low, reached with an e-fold of so many batches, as one that is
/// rounded to nearest does.
inline world moments(std::uint64_t seed, double batches, double part = 0.1) {
  world w = usual(seed, 600);
  draw random{seed + 1};
  const double all = w.costs(w.graph, plan{w.graph.size()});
  std::vector<comp::op_info> ops{w.graph.begin(), w.graph.end()};
  for (const char* kind : {"moment1", "moment2"}) {
    ops.push_back(
        {.name = std::string{"optimizer."} + kind, .kind = kind, .outputs = {{.shape = {1 << 20}}}, .is_state = true});
    auto& seconds = w.costs.op.emplace_back();
    seconds.fill(all * random.between(0.1, 0.33));
    seconds[static_cast<std::size_t>(precision::bf16)] *= random.between(0.5, 0.7);
    w.costs.cast.push_back(0);
    w.score.push_back(1);
    w.losses.immediate.push_back(0);
    w.losses.cumulative.push_back(0);
  }
  w.graph = comp::op_graph{std::move(ops)};
  if (batches > 0) {
    w.losses.slow.assign(w.graph.size(), 0);
    w.losses.slow.back() = part;
    w.losses.slow_settle = batches;
  }
  return w;
}

/// The same with FP8 for moments, too, in which alone the second one harms.
inline world moments_in_fp8(std::uint64_t seed, double batches) {
  world w = moments(seed, batches);
  draw random{seed + 2};
  w.precisions.push_back(precision::fp8_e4m3);
  w.losses.slow_in = precision::fp8_e4m3;
  for (std::size_t i = w.graph.size() - 2; i < w.graph.size(); ++i) {
    auto& seconds = w.costs.op[i];
    seconds[static_cast<std::size_t>(precision::fp8_e4m3)] =
        seconds[static_cast<std::size_t>(precision::bf16)] * random.between(0.7, 1.1);
  }
  return w;
}

/// Profiles and scores that are not to be trusted.
inline world bad_input(std::uint64_t seed) {
  world w = usual(seed, 100);
  w.profile_fault = static_cast<fault>(seed % 4);
  w.score_fault = static_cast<fault>(seed / 4 % 4);
  return w;
}

}  // namespace truth
