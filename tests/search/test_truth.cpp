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
  world made = truth::harmless(random, {.shape = truth::drawn_shape(random), .operators = 10}, costs);
  truth::harm(made, random, random.below(10), 0.1);
  made.losses.pairs = {{random.below(5), 5 + random.below(5), 0.1}};
  return made;
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

TEST_CASE("a tensor that two readers cast is paid once or twice, as the rule says") {
  std::vector<comp::op_info> ops{{.name = "a"}, {.name = "b", .producers = {0}}, {.name = "c", .producers = {0}}};
  const comp::op_graph graph{ops};
  truth::costs costs{.op = std::vector<std::array<double, comp::all_precisions.size()>>(3), .cast = {1, 1, 1}};
  const comp::plan p = comp::parse_plan("1bb");
  CHECK(costs(graph, p) == 2);
  costs.rule = truth::cast_rule::per_tensor;
  CHECK(costs(graph, p) == 1);
  costs.fused = {{1, 2, 0.25}};
  CHECK(costs(graph, p) == 0.75);
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

TEST_CASE("an epoch's mean differs from run to run by as much as was asked for") {
  double squares = 0;
  constexpr int runs = 400;
  for (int i = 0; i < runs; ++i) {
    world w = small(4);
    w.seed = static_cast<std::uint64_t>(i) + 1;
    w.losses.curve = [](double) { return 1.0; };
    w.losses.noise = 0, w.losses.wander = 0.05;
    full_trainer trainer{w};
    squares += std::pow(trainer.run_epoch().loss - 1, 2);
  }
  CHECK(std::sqrt(squares / runs) == doctest::Approx(0.05).epsilon(0.15));
}

TEST_CASE("a batch is as long for every plan that trains it") {
  world w = truth::lengths(1);
  w.noise = 0;
  full_trainer trainer{w};
  const truth::state start = trainer.save();
  const auto slow = trainer.run_epoch().batch_seconds;
  trainer.restore(start);
  trainer.set_precision(comp::plan{w.graph.size(), comp::precision::bf16});
  const auto fast = trainer.run_epoch().batch_seconds;
  for (std::size_t i = 1; i < slow.size(); ++i) CHECK(slow[i] / fast[i] == doctest::Approx(1.19));  // 0: the first
}

TEST_CASE("the worlds are what they say") {
  SUBCASE("one operator of a kind harms") {
    const world w = truth::one_of_a_kind(7, 16);
    const auto harmful = truth::harmful_operators(w);
    CHECK(std::count(harmful.begin(), harmful.end(), true) == 1);
    CHECK(truth::operators_of(w.graph, truth::is_allow).size() == 16);
  }
  SUBCASE("32 of 64 are sensitive, and the most sensitive ones") {
    const world w = truth::sensitive(7);
    const auto harmful = truth::harmful_operators(w);
    CHECK(std::count(harmful.begin(), harmful.end(), true) == 32);
  }
  SUBCASE("pairs harm together alone") {
    const world w = truth::pairs(7);
    comp::plan p{w.graph.size()};
    p[w.losses.pairs[0].first] = comp::precision::bf16;
    CHECK_FALSE(truth::does_harm(w, p));
    p[w.losses.pairs[0].second] = comp::precision::bf16;
    CHECK(truth::does_harm(w, p));
  }
  SUBCASE("a late divergence comes late, and is over in FP32") {
    const world w = truth::diverges_late(7);
    full_trainer trainer{w};
    comp::plan bad{w.graph.size()};
    for (const std::size_t op : w.losses.diverging) bad[op] = comp::precision::bf16;
    trainer.set_precision(bad);
    for (std::uint64_t b = 0; b < w.losses.onset; ++b) trainer.run_batch();
    CHECK(trainer.weights().late < 0.03);
    for (int b = 0; b < 300; ++b) trainer.run_batch();
    CHECK(trainer.weights().late > 1);
    CHECK(trainer.billed().diverged > 0);
  }
}
