// SPDX-License-Identifier: Apache-2.0
// How long a plan's batch truly takes: operators, casts, and what no sum of operators shows (neighbours that run as one
// when they have the same precision). What a search measures is this, with noise (trainer.hpp).
#pragma once

#include <array>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "draw.hpp"
#include "graphs.hpp"

namespace truth {

enum class cast_rule : std::uint8_t {
  per_edge,   // each reader casts for itself
  per_tensor  // once per tensor and precision, however many read it
};

enum class fuses : std::uint8_t { alike, in_fp32, in_low };

/// Neighbours that take `saved` seconds less while they have the same precision, or while that is FP32, or low.
struct fusion {
  std::size_t producer = 0, reader = 0;
  double saved = 0;
  fuses when = fuses::alike;

  bool holds(const comp::plan& p) const {
    if (p[producer] != p[reader]) return false;
    return when == fuses::alike || comp::is_low(p[reader]) == (when == fuses::in_low);
  }
};

struct costs {
  std::vector<std::array<double, comp::all_precisions.size()>> op = {};  // seconds of a batch, by precision
  std::vector<double> cast = {};                                         // seconds of casting an operator's output
  truth::cast_rule rule = cast_rule::per_edge;
  std::vector<fusion> fused = {};
  double fixed = 0;         // seconds that no plan changes: data loading
  double between_lows = 1;  // times a cast's seconds, if both precisions are low
  double together = 0;      // seconds saved while all operators have the same low precision

  double operator()(const comp::op_graph& graph, const comp::plan& p) const {
    double seconds = fixed;
    for (std::size_t i = 0; i < p.size(); ++i) {
      seconds += op[i][static_cast<std::size_t>(p[i])];
      unsigned cast_to = 0;  // a bit per precision
      for (const std::uint32_t reader : graph.consumers(i)) {
        const unsigned bit = 1U << static_cast<unsigned>(p[reader]);
        if (p[reader] == p[i] || (rule == cast_rule::per_tensor && (cast_to & bit) != 0)) continue;
        cast_to |= bit;
        seconds += cast[i] * (comp::is_low(p[i]) && comp::is_low(p[reader]) ? between_lows : 1);
      }
    }
    for (const fusion& f : fused) seconds -= f.holds(p) ? f.saved : 0;
    if (comp::is_low(p[0]) && p == comp::plan{p.size(), p[0]}) seconds -= together;
    return seconds;
  }
};

struct range {
  double low = 0, high = 0;
};

/// Seconds of a low operator and of a cast, as parts of FP32's and of a cheap operator's.
struct cost_settings {
  range allow = {0.35, 0.7};
  range deny = {0.5, 1.15};
  range other = {0.5, 1.1};
  double slower = 0;  // part of the operators that low precision makes 1 to 1.6 times as slow
  double cast = 0.1;  // of a cheap operator
  truth::cast_rule rule = cast_rule::per_edge;
  double fused = 0;  // part of the edges
  fuses when = fuses::alike;
  range saved = {0.1, 0.4};  // by a fusion, of a cheap operator
  double apart = 1.15;       // two low precisions differ by up to this factor
  double fixed = 0;          // of FP32's seconds
};

inline costs drawn_costs(draw& random, const comp::op_graph& graph, const cost_settings& chosen) {
  costs times;
  times.rule = chosen.rule;
  double all = 0;
  for (const comp::op_info& op : graph) {
    const double fp32 = 1e-4 * units_of(op) * random.factor(0.2);
    const range part = is_allow(op) ? chosen.allow : is_deny(op) ? chosen.deny : chosen.other;
    const double low = random.chance(chosen.slower) ? random.between(1, 1.6) : random.between(part.low, part.high);
    auto& by_precision = times.op.emplace_back();
    // The worlds have these formats alone, so that they stay the same when a format is added.
    for (const comp::precision p : {comp::precision::fp32, comp::precision::tf32, comp::precision::bf16,
                                    comp::precision::fp16, comp::precision::fp8_e4m3, comp::precision::fp8_e5m2}) {
      by_precision[static_cast<std::size_t>(p)] = fp32 * low * random.between(1 / chosen.apart, chosen.apart);
    }
    by_precision[static_cast<std::size_t>(comp::precision::fp32)] = fp32;
    by_precision[static_cast<std::size_t>(comp::precision::bf16)] = fp32 * low;
    times.cast.push_back(1e-4 * chosen.cast * random.between(0.7, 1.3));
    all += fp32;
  }
  for (std::size_t i = 0; i < graph.size(); ++i) {
    for (const std::size_t producer : graph[i].producers) {
      if (random.chance(chosen.fused))
        times.fused.push_back({producer, i, 1e-4 * random.between(chosen.saved.low, chosen.saved.high), chosen.when});
    }
  }
  times.fixed = chosen.fixed * all;
  return times;
}

}  // namespace truth
