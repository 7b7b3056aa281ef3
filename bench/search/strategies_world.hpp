// SPDX-License-Identifier: Apache-2.0
// Made-up models to compare strategies on: operators with a time in each precision, casts on the edges of a DAG,
// operators that harm below a precision, pairs that harm together, and noise. All of it drawn from a seed; the best
// plan is known, or as good as known (world::best). Tied operators are summed up to their groups, so a plan of 100,000
// operators in 100 groups costs as much as 100.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <comp/core/search_space.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace bench {

/// What is drawn. Shares are of operators; times are in units of an operator's mean FP32 time.
struct world_settings {
  std::size_t operators = 64;
  std::size_t groups = 64;  // operators of a group are neighbours
  std::size_t precisions = 2;
  double harmful = 0.1;   // of the groups that may not be on their last level, or on no lower one at all
  std::size_t pairs = 2;  // of groups that harm only together
  bool together = false;  // harmful groups lie side by side
  double light = 0.9;     // time of an operator that does little in low precision, of its FP32 time, 0.3 more or less
  double cast = 0.15;     // an edge whose ends differ, at most
  double noise = 0.03;    // of a batch's time, standard deviation
  std::size_t batches = 20;
};

class world {
 public:
  world(const world_settings& drawn, std::uint64_t seed) : settings_{drawn}, seed_{seed}, generator_{seed} {
    const std::size_t groups = settings_.groups, tied = settings_.operators / groups;
    seconds_.resize(groups);
    edges_.resize(groups);
    for (std::size_t g = 0; g < groups; ++g) draw_times(g, tied);
    for (std::size_t g = 1; g < groups; ++g) {
      connect(g, g - 1);
      if (g > 8 && unit() < 0.2) connect(g, g - 2 - below(6));  // a residual edge
    }
    draw_harm();
  }

  comp::search_space space() const {
    using enum comp::precision;
    const std::vector<comp::precision> all = settings_.precisions > 3
                                                 ? std::vector{fp32, tf32, bf16, fp16, fp8_e4m3, fp8_e5m2}
                                                 : std::vector{fp32, bf16, fp16};
    std::vector<comp::op_group> groups;
    const std::size_t tied = settings_.operators / settings_.groups;
    for (std::size_t g = 0; g < settings_.groups; ++g) {
      comp::op_group group{.name = fmt::format("block{}.{}.{}", g / 8, g % 8 < 4 ? "attention" : "mlp", g % 8)};
      for (std::size_t i = 0; i < tied; ++i) group.operators.push_back(static_cast<std::uint32_t>(g * tied + i));
      group.levels.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(seconds_[g].size()));
      groups.push_back(std::move(group));
    }
    return {comp::plan{tied * settings_.groups}, std::move(groups)};
  }

  /// Seconds of a batch, free of noise.
  double seconds(const std::vector<std::size_t>& levels) const {
    double all = 0;
    for (std::size_t g = 0; g < levels.size(); ++g) {
      all += seconds_[g][levels[g]];
      for (const edge& e : edges_[g]) all += e.to < g && levels[e.to] != levels[g] ? e.seconds : 0;
    }
    return all;
  }
  double harm(const std::vector<std::size_t>& levels) const {
    double all = 0;
    for (std::size_t g = 0; g < levels.size(); ++g) {
      all += levels[g] > limits_[g] ? 0.05 : 0;
      for (const std::size_t other : pairs_[g]) all += other < g && levels[g] > 0 && levels[other] > 0 ? 0.05 : 0;
    }
    return all;
  }
  static std::vector<std::size_t> levels_of(const comp::search_space& space, const comp::plan& p) {
    std::vector<std::size_t> levels(space.groups().size());
    for (std::size_t g = 0; g < levels.size(); ++g) levels[g] = space.level(p, g);
    return levels;
  }

  /// What a search would measure: the same for the same plan, whoever asks.
  comp::trial measured(const comp::search_space& space, const comp::plan& p) const {
    const auto levels = levels_of(space, p);
    comp::trial t{.stage = comp::stage::losses, .plan = p};
    std::mt19937_64 noise{seed_ ^ std::hash<comp::plan>{}(p)};
    const double exact = seconds(levels);
    for (std::size_t i = 0; i < settings_.batches; ++i) {
      const double angle = 6.283185307179586 * comp::strategy::fraction(noise);
      const double size = std::sqrt(-2 * std::log(1 - comp::strategy::fraction(noise)));
      t.sample.batch_seconds.push_back(exact * std::max(0.1, 1 + settings_.noise * size * std::cos(angle)));
      t.sample.seconds += t.sample.batch_seconds.back();
    }
    t.sample.batches = static_cast<std::int64_t>(settings_.batches);
    t.sample.loss = 1 + harm(levels);
    t.sample.peak_bytes = 1 + static_cast<std::int64_t>(4096 * bytes(space, levels));
    t.accepted = t.sample.loss < 1.01;
    t.seconds = comp::median(t.sample.batch_seconds);
    t.bounds = comp::median_interval(t.sample.batch_seconds);
    return t;
  }

  /// The fastest harmless levels that a search with the truth in its hands finds: from both ends, by descent alone and
  /// by annealing with exact steps, 200 for each group. Not proven to be the best.
  std::vector<std::size_t> best() {
    std::vector<std::size_t> best;
    for (const double hot : {0.0, 0.03, 0.3}) {
      for (const bool from_low : {true, false}) {
        std::vector<std::size_t> now(settings_.groups);
        for (std::size_t g = 0; from_low && g < now.size(); ++g) {
          if (allowed(now, g, limits_[g])) now[g] = limits_[g];
        }
        const std::size_t steps = 200 * now.size();
        for (std::size_t i = 0; i < steps; ++i)
          try_step(now, i > steps * 9 / 10 ? 0 : hot * (1 - double(i) / double(steps)));
        if (best.empty() || seconds(now) < seconds(best)) best = std::move(now);
      }
    }
    return best;
  }

 private:
  struct edge {
    std::size_t to;
    double seconds;
  };

  double unit() { return comp::strategy::fraction(generator_); }
  std::size_t below(std::size_t bound) { return comp::search_space::below(generator_, bound); }

  // A quarter of the operators take most of the time, and low precision speeds them up; many others gain nothing.
  void draw_times(std::size_t g, std::size_t tied) {
    const std::size_t levels = settings_.precisions <= 2 ? 2 : 2 + below(settings_.precisions - 1);
    const bool heavy = unit() < 0.25;
    seconds_[g].assign(levels, 0);
    for (std::size_t i = 0; i < tied; ++i) {
      const double fp32 = heavy ? 1 + 3 * unit() : 0.1 + 0.3 * unit();
      seconds_[g][0] += fp32;
      for (std::size_t level = 1; level < levels; ++level) {
        seconds_[g][level] +=
            fp32 * (heavy ? 0.9 / double(level + 1) + 0.2 * unit() : settings_.light - 0.3 + 0.6 * unit());
      }
    }
  }

  void connect(std::size_t from, std::size_t to) {
    const double cost = settings_.cast * unit();
    edges_[from].push_back({to, cost});
    edges_[to].push_back({from, cost});
  }

  void draw_harm() {
    const std::size_t groups = settings_.groups;
    const auto harmful = static_cast<std::size_t>(std::ceil(settings_.harmful * double(groups)));
    for (const auto& times : seconds_) limits_.push_back(times.size() - 1);
    const std::size_t first = below(groups);
    for (std::size_t i = 0; i < harmful; ++i) {
      const std::size_t g = settings_.together ? (first + i) % groups : below(groups);
      limits_[g] = below(seconds_[g].size() - 1);
    }
    pairs_.resize(groups);
    for (std::size_t i = 0; i < settings_.pairs && groups > 1; ++i) {
      const std::size_t a = below(groups), b = (a + 1 + below(groups - 1)) % groups;
      pairs_[a].push_back(b);
      pairs_[b].push_back(a);
    }
  }

  bool allowed(const std::vector<std::size_t>& now, std::size_t g, std::size_t level) const {
    const auto clashes = [&](std::size_t other) { return level > 0 && now[other] > 0; };
    return level <= limits_[g] && std::none_of(pairs_[g].begin(), pairs_[g].end(), clashes);
  }

  void try_step(std::vector<std::size_t>& now, double heat) {
    const std::size_t g = below(now.size()), level = below(seconds_[g].size());
    if (level == now[g] || !allowed(now, g, level)) return;
    double more = seconds_[g][level] - seconds_[g][now[g]];
    for (const edge& e : edges_[g]) {
      more += (now[e.to] != level ? e.seconds : 0) - (now[e.to] != now[g] ? e.seconds : 0);
    }
    if (more <= 0 || (heat > 0 && unit() < std::exp(-more / heat))) now[g] = level;
  }

  static double bytes(const comp::search_space& space, const std::vector<std::size_t>& levels) {
    double all = 0;
    for (std::size_t g = 0; g < levels.size(); ++g) all += comp::traits(space.groups()[g].levels[levels[g]]).bytes;
    return all;
  }

  world_settings settings_;
  std::uint64_t seed_;
  std::mt19937_64 generator_;
  std::vector<std::vector<double>> seconds_ = {};     // per group and level
  std::vector<std::vector<edge>> edges_ = {};         // per group, both ways
  std::vector<std::size_t> limits_ = {};              // per group: the last level that does not harm
  std::vector<std::vector<std::size_t>> pairs_ = {};  // per group: those it harms with
};

}  // namespace bench
