// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "truth/best.hpp"
#include "truth/late_worlds.hpp"
#include "truth/worlds.hpp"

namespace {

using truth::full_trainer;
using truth::world;

static_assert(comp::Backend<truth::bare_trainer> && !comp::detail::saves<truth::bare_trainer>);
static_assert(comp::Backend<truth::profiling<truth::saving<truth::bare_trainer>>>);
static_assert(!comp::detail::stops<truth::profiling<truth::saving<truth::bare_trainer>>>);
static_assert(comp::Backend<full_trainer> && comp::detail::saves<full_trainer> && comp::detail::stops<full_trainer>);
static_assert(comp::detail::profiles<full_trainer> && comp::detail::knows_precisions<full_trainer>);
static_assert(comp::detail::scores_operators<full_trainer> && comp::detail::perturbs<full_trainer> &&
              comp::detail::counts_batches<full_trainer>);

world small(std::uint64_t seed) {
  truth::draw random{seed};
  const truth::cost_settings costs{
      .slower = 0.1, .cast = 0.5, .rule = static_cast<truth::cast_rule>(seed % 2), .fused = seed % 4 == 0 ? 0.3 : 0};
  world w = truth::harmless(random, {.shape = truth::drawn_shape(random), .operators = 10}, costs);
  truth::harm(w, random, random.below(10), 0.1);
  w.losses.pairs = {{random.below(5), 5 + random.below(5), 0.1}};
  return w;
}

std::vector<double> curve_of(full_trainer& trainer) { return trainer.run_epoch().curve; }

}  // namespace

TEST_CASE("the minimum cut is the best plan that brute force finds") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const world w = small(seed);
    const comp::plan cut = truth::best_plan(w), all = truth::brute_force(w);
    CHECK_FALSE(truth::does_harm(w, cut));
    CHECK(truth::true_seconds(w, cut) == doctest::Approx(truth::true_seconds(w, all)).epsilon(1e-12));
  }
}

TEST_CASE("a restored trainer gives the same batches, and the machine's wander on top") {
  world w = small(3);
  SUBCASE("nothing wanders: equal to the bit, perturbed too") {
    w.losses.wander = 0;
    full_trainer trainer{w};
    const truth::state start = trainer.save();
    const std::vector<double> first = curve_of(trainer);
    trainer.restore(start);
    trainer.perturb(5);
    CHECK(curve_of(trainer) == first);
  }
  SUBCASE("chaos: equal to the bit, another path when perturbed or under another plan") {
    w.losses.wander = 0.05, w.losses.chaos = true;
    full_trainer trainer{w};
    const truth::state start = trainer.save();
    const std::vector<double> first = curve_of(trainer);
    trainer.restore(start);
    CHECK(curve_of(trainer) == first);
    trainer.restore(start);
    trainer.perturb(5);
    CHECK(curve_of(trainer) != first);
    trainer.restore(start);
    comp::plan other{w.graph.size()};
    other[0] = comp::precision::bf16;
    trainer.set_precision(other);
    const std::vector<double> second = curve_of(trainer);
    CHECK(second != first);
    CHECK(second.front() == doctest::Approx(first.front()).epsilon(0.2));  // the same batch
  }
  SUBCASE("the machine: no two runs are equal") {
    w.losses.wander = 0.05;
    full_trainer trainer{w};
    const truth::state start = trainer.save();
    const std::vector<double> first = curve_of(trainer);
    trainer.restore(start);
    CHECK(curve_of(trainer) != first);
  }
}
