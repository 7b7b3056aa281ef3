// SPDX-License-Identifier: Apache-2.0
// Worlds that differ from what a search expects: harm by what is *not* low, memory that FP32 does not fit in, harm that
// takes hundreds of batches, losses that are NaN, times that no profile shows, trainings of few batches.
// Not here: the usual ones (worlds.hpp), and what is counted (bench/search/truth.cpp).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "best.hpp"
#include "worlds.hpp"

namespace truth {

/// 5 to 59 batches an epoch. A low allow operator raises the loss by 10% to 30% if another one is *not* low; that one
/// is slower low, so the fastest part of what the rules lower harms, and the rule-based plan does not.
inline world harms_apart(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 12 + random.below(19), .allow = 0.5};
  world w = harmless(random, graph, {.deny = {0.7, 1.2}, .cast = 0.03});
  w.batches = 5 + random.below(55);
  w.losses.settle = random.between(1, 4);
  const auto two = random.some(operators_of(w.graph, is_allow), 2);
  if (two.size() < 2) return harms_apart(seed + 1'000'003);
  w.losses.apart = {{two[0], two[1], random.between(0.1, 0.3)}};
  auto& slow = w.costs.op[two[1]];
  slow[static_cast<std::size_t>(precision::bf16)] = slow[0] * random.between(1.3, 1.7);
  return w;
}

/// Neither FP32 nor the rule-based plan fits, all low does, and so does all low but what harms: a deny operator, in
/// every second world an allow operator instead.
inline world no_room(std::uint64_t seed) {
  for (;; seed += 1'000'003) {
    draw random{seed};
    world w = usual(random.bits(), 100);
    w.losses.immediate.assign(w.graph.size(), 0);
    w.losses.cumulative.assign(w.graph.size(), 0);
    const auto bad = operators_of(w.graph, seed % 2 == 0 ? is_deny : is_allow);
    if (bad.empty()) continue;
    harm(w, random, bad[random.below(bad.size())], random.between(0.05, 0.3));
    const plan low{w.graph.size(), precision::bf16}, good = without_harm(w, low);
    w.device_bytes = bytes_of(w, good) + w.weight_bytes / 8;
    plan rules{w.graph.size()};
    for (const std::size_t op : operators_of(w.graph, is_allow)) rules[op] = precision::bf16;
    if (bytes_of(w, rules) > w.device_bytes) return w;
  }
}

/// A loss that falls with an e-fold of `epochs`; a deny or an allow operator raises it by 5% to 30%.
inline world falling(std::uint64_t seed, double epochs) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 10 + random.below(21)};
  world w = harmless(random, graph, {.deny = {0.5, 0.9}, .other = {0.5, 0.9}, .cast = 0.05});
  w.losses.curve = [epochs](double epoch) { return 0.1 + 2 * std::exp(-epoch / epochs); };
  w.losses.settle = random.between(1, 5);
  std::vector<std::size_t> bad = operators_of(w.graph, random.chance(0.5) ? is_deny : is_allow);
  if (bad.empty()) bad = {0};
  harm(w, random, bad[random.below(bad.size())], random.between(0.05, 0.3));
  return w;
}

/// A deny or an allow operator raises the loss by 10%, reached with an e-fold of `batches` batches.
inline world slow_harm(std::uint64_t seed, double batches) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 10 + random.below(21)};
  world w = harmless(random, graph, {.deny = {0.5, 0.9}, .other = {0.5, 0.9}, .cast = 0.05});
  w.losses.slow.assign(w.graph.size(), 0);
  w.losses.slow_settle = batches;
  std::vector<std::size_t> bad = operators_of(w.graph, random.chance(0.5) ? is_deny : is_allow);
  if (bad.empty()) bad = {0};
  w.losses.slow[bad[random.below(bad.size())]] = 0.1;
  return w;
}

/// 20 to 40 operators, one of which makes the training diverge some epochs after the search.
inline world one_turns_bad(std::uint64_t seed) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 20 + random.below(21)};
  world w = harmless(random, graph, {.deny = {0.5, 0.9}, .other = {0.5, 0.9}, .cast = 0.05});
  w.losses.curve = [](double epoch) { return 0.05 + 1.95 * std::exp(-epoch / 8); };
  w.losses.onset = w.batches * (4 + random.below(12));
  w.losses.growth = random.between(0.02, 0.2);
  w.losses.diverging = {random.below(w.graph.size())};
  return w;
}

enum class loss_of_batches : std::uint8_t {
  early,  // one of the first 20 batches is NaN, under any plan
  rare,   // 0.1% of all batches are, under any plan
  low     // 3% are while a deny or an allow operator is low
};

inline world not_finite(std::uint64_t seed, loss_of_batches which) {
  draw random{seed};
  world w = usual(random.bits(), 40 + random.below(121));
  w.losses.immediate.assign(w.graph.size(), 0);
  w.losses.cumulative.assign(w.graph.size(), 0);
  if (which == loss_of_batches::early) w.losses.lost_at = {random.below(20)};
  if (which == loss_of_batches::rare) w.losses.lost = 0.001;
  if (which == loss_of_batches::low) {
    std::vector<std::size_t> bad = operators_of(w.graph, random.chance(0.5) ? is_deny : is_allow);
    if (bad.empty()) bad = {0};
    w.losses.lost_low.assign(w.graph.size(), 0);
    w.losses.lost_low[bad[random.below(bad.size())]] = 0.03;
  }
  return w;
}

/// A deny operator raises the loss by `part`, at once; the loss of an epoch differs by 0.2% from run to run.
inline world rises(std::uint64_t seed, double part) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 10 + random.below(11), .deny = 0.4};
  world w = harmless(random, graph, {.deny = {0.4, 0.8}, .other = {0.4, 0.8}, .cast = 0.02});
  std::vector<std::size_t> denied = operators_of(w.graph, is_deny);
  if (denied.empty()) denied = {0};
  w.losses.immediate[denied[random.below(denied.size())]] = part;
  return w;
}

enum class surprise : std::uint8_t {
  together,         // all low is fast, and nothing less is
  fused_low,        // neighbours that are both low run as one
  fused_fp32,       // neighbours that are both FP32 do
  profile_off,      // each time of a profile is up to ten times off
  profile_inverse,  // a profile says that what is fast is slow
  three_lows,       // BF16, FP16 and FP8, each faster for some operators
  costly_between    // the same, and a cast between two of them costs three times another one
};

/// 8 to 12 operators (8 with several low precisions) whose times no profile or no sum shows. Nothing harms.
inline world surprising(std::uint64_t seed, surprise which) {
  draw random{seed};
  const bool several = which == surprise::three_lows || which == surprise::costly_between;
  const graph_settings graph{.shape = drawn_shape(random), .operators = several ? 8 : 8 + random.below(5)};
  cost_settings costs{.deny = {0.6, 1.2}, .other = {0.5, 1.1}, .cast = 0.2};
  if (which == surprise::fused_low || which == surprise::fused_fp32) {
    costs.fused = 0.7;
    costs.when = which == surprise::fused_low ? fuses::in_low : fuses::in_fp32;
    costs.saved = {0.3, 0.8};
    if (which == surprise::fused_low) costs.allow = costs.deny = costs.other = {0.95, 1.1};
  }
  if (which == surprise::together) costs.allow = costs.deny = costs.other = {0.97, 1.06};
  if (several) costs.apart = 1.4;
  world w = harmless(random, graph, costs);
  w.noise = 0.02;
  if (which == surprise::together) w.costs.together = 0.25 * w.costs(w.graph, plan{w.graph.size()});
  if (which == surprise::profile_off) w.profile_fault = fault::off;
  if (which == surprise::profile_inverse) w.profile_fault = fault::inverse;
  if (several) w.precisions = {precision::fp32, precision::bf16, precision::fp16, precision::fp8_e4m3};
  if (which == surprise::costly_between) w.costs.between_lows = 3;
  return w;
}

}  // namespace truth
