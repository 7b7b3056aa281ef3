// SPDX-License-Identifier: Apache-2.0
// All strategies on the same spaces: drawn models of 60 to 100,000 operators with casts, harm of operators and of
// pairs, noise, and 2 to 6 precisions. For each: evaluations, what part of the best known saving its choice reaches
// (mean and worst over the seeds), and its own time per question. `strategies [--seed N]`; the same seed draws the same
// spaces. Exits with 1 when a strategy asks twice for a plan. Not here: the default search (guided), which needs a
// trainer: bench/search/truth.cpp.
#include <fmt/format.h>

#include <charconv>
#include <comp/strategy/beam.hpp>
#include <comp/strategy/delta_debugging.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <comp/strategy/genetic.hpp>
#include <comp/strategy/greedy.hpp>
#include <comp/strategy/moves.hpp>
#include <memory>
#include <random>
#include <string_view>

#include "strategies_compare.hpp"
#include "strategies_world.hpp"

namespace {

namespace strategy = comp::strategy;

/// Plans drawn uniformly: what every strategy has to beat.
struct uniform {
  struct run {
    std::vector<comp::plan> ask(std::size_t) {
      for (std::size_t misses = 0; left > 0 && !asked.exhausted(space, misses); ++misses) {
        const comp::plan drawn = space.random(generator);
        if (!asked.fresh(space, drawn)) continue;
        --left;
        return {drawn};
      }
      return {};
    }
    void tell(const comp::trial&) {}

    comp::search_space space;
    std::size_t left;
    std::mt19937_64 generator;
    strategy::asked_plans asked = {};
  };
  run start(comp::search_space over) const { return {std::move(over), trials, std::mt19937_64{seed}}; }

  std::size_t trials;
  std::uint64_t seed;
};

std::vector<bench::contender> contenders() {
  using std::size_t, std::uint64_t;
  return {
      bench::named("exhaustive", [](size_t, uint64_t) { return strategy::exhaustive{}; }),
      bench::named("random", [](size_t n, uint64_t s) { return uniform{.trials = n, .seed = s}; }),
      bench::named("greedy", [](size_t, uint64_t) { return strategy::greedy{}; }),
      bench::named("beam", [](size_t, uint64_t) { return strategy::beam{}; }),
      bench::named("delta debugging", [](size_t, uint64_t) { return strategy::delta_debugging{}; }),
      bench::named("genetic", [](size_t n, uint64_t s) { return strategy::genetic{.trials = n, .seed = s}; }),
  };
}

struct setting {
  std::string name;
  bench::world_settings world;
  std::size_t budget;
  std::size_t seeds;
};

std::vector<setting> settings() {
  return {
      {"60 operators in 10 groups, 2 precisions", {.operators = 60, .groups = 10, .cast = 0.5}, 1024, 10},
      {"64 operators, 2 precisions, harm scattered", {}, 256, 10},
      {"64 operators, 2 precisions, harm scattered, 15% noise", {.noise = 0.15}, 256, 10},
      {"64 operators, 2 precisions, harm together, casts costly", {.together = true, .cast = 0.5}, 256, 10},
      {"64 operators, 4 precisions, harm scattered", {.precisions = 4}, 256, 10},
      {"64 operators, 2 precisions, no harm, many slower (stage 2)",
       {.harmful = 0, .pairs = 0, .light = 2, .cast = 0.5},
       256,
       10},
      {"400 operators, 2 precisions, 1% harm", {.operators = 400, .groups = 400, .harmful = 0.01}, 512, 5},
      {"400 operators, 2 precisions, 10% harm", {.operators = 400, .groups = 400, .pairs = 8}, 512, 5},
      {"400 operators, 6 precisions, 10% harm", {.operators = 400, .groups = 400, .precisions = 6, .pairs = 8}, 512, 5},
      {"100,000 operators in 100 groups, 3 precisions",
       {.operators = 100'000, .groups = 100, .precisions = 3, .cast = 20},
       256,
       3},
      {"100,000 operators, each its own group, 2 precisions",
       {.operators = 100'000, .groups = 100'000, .harmful = 0.00005, .pairs = 0, .together = true},
       64,
       2},
  };
}

bench::arena drawn(bench::world& model, std::size_t budget) {
  const auto space = std::make_shared<const comp::search_space>(model.space());
  return {.space = *space,
          .measure = [&model, space](const comp::plan& p) { return model.measured(*space, p); },
          .truth = [&model, space](const comp::plan& p) { return model.seconds(bench::world::levels_of(*space, p)); },
          .best = model.seconds(model.best()),
          .budget = budget};
}

/// What one strategy did on all seeds of a space.
struct row {
  double evaluations = 0, distinct = 0, saved = 0, saved_early = 0, could_save = 0, worst = 1, microseconds = 0;
  std::size_t ended = 0, runs = 0;
  std::string refused = {};

  // `best`: seconds of the best plan that is known.
  void add(const bench::reached& r, double best) {
    refused = r.refused;
    if (!refused.empty()) return;
    ++runs;
    evaluations += double(r.evaluations), distinct += double(r.distinct);
    saved += 1 - r.found / r.fp32, saved_early += 1 - r.early / r.fp32, could_save += 1 - best / r.fp32;
    worst = std::max(worst, r.found / best);
    ended += r.ended;
    microseconds += 1e6 * r.seconds_in_it / double(std::max<std::size_t>(r.evaluations, 1));
  }
  void print(const std::string& name) const {
    if (!refused.empty()) return fmt::print("  {:<20} refused: {}\n", name, refused.substr(0, refused.find(" (")));
    const double n = double(runs);
    fmt::print("  {:<20} {:>8.0f}{} {:>8.0f} {:>8.2f} {:>8.2f} {:>8.2f} {:>10.1f}\n", name, evaluations / n,
               ended == runs ? ' ' : '*', distinct / n, saved_early / could_save, saved / could_save, worst,
               microseconds / n);
  }
};

/// Runs all strategies on all seeds of a space, and prints the table. Returns: a row each.
std::vector<row> compare(const setting& s, std::uint64_t seed, const std::vector<bench::contender>& all) {
  std::vector<row> rows(all.size());
  for (std::size_t i = 0; i < s.seeds; ++i) {
    bench::world model{s.world, seed + i};
    const bench::arena in = drawn(model, s.budget);
    std::vector<bench::reached> got;
    double best = in.best;
    for (const auto& each : all) {
      got.push_back(each.run(in, seed + i));
      if (got.back().refused.empty()) best = std::min(best, got.back().found);
    }
    for (std::size_t k = 0; k < all.size(); ++k) rows[k].add(got[k], best);
  }
  fmt::print("{} ({} seeds, {} evaluations at most)\n", s.name, s.seeds, s.budget);
  fmt::print("  {:<20} {:>9} {:>8} {:>8} {:>8} {:>8} {:>10}\n", "", "asked ", "distinct", "after 32", "saving", "worst",
             "us per ask");
  for (std::size_t k = 0; k < all.size(); ++k) rows[k].print(all[k].name);
  return rows;
}

int usage(std::string_view what) {
  fmt::print(stderr, "\"{}\" is no argument (strategies takes [--seed N]): give that\n", what);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--seed" && std::from_chars(value.data(), value.data() + value.size(), seed).ec == std::errc{}) {
      ++i;
    } else {
      return usage(argument);
    }
  }
  const auto all = contenders();
  bool distinct = true;
  for (const setting& s : settings()) {
    const auto rows = compare(s, seed, all);
    for (const row& each : rows) distinct = distinct && each.distinct == each.evaluations;
  }
  fmt::print(
      "asked: evaluations; *: their limit ended it. saving: part of the best known saving that the plan measured as "
      "fastest truly has, over all seeds; after 32: the same after 32 evaluations. worst: its time over the best known "
      "plan's, at worst.\n");
  return distinct ? 0 : 1;
}
