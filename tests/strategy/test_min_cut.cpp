// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <comp/core/op_graph.hpp>
#include <comp/strategy/min_cut.hpp>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "processor_time.hpp"

using comp::index_of;
using comp::plan;
using comp::plan_costs;
using comp::precision;
using comp::strategy::min_cut_plan;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

struct drawn {
  comp::op_graph graph;
  plan_costs costs;
  plan start;
};

// A DAG with views, tensors that many read, operators that are fixed and casts from free to costly. Each operator has
// FP32 and some of `lows`.
drawn draw(std::mt19937_64& random, std::size_t operators, const std::vector<precision>& lows) {
  const auto share = [&] { return std::uniform_real_distribution<double>{0, 1}(random); };
  std::vector<comp::op_info> ops(operators);
  for (std::size_t i = 0; i < operators; ++i) {
    ops[i].name = std::to_string(i);
    for (std::size_t reads = i == 0 ? 0 : 1 + random() % 3; reads > 0; --reads) {
      ops[i].producers.push_back(random() % 3 == 0 ? random() % i : i - 1 - random() % std::min<std::size_t>(i, 3));
    }
    std::sort(ops[i].producers.begin(), ops[i].producers.end());
    ops[i].producers.erase(std::unique(ops[i].producers.begin(), ops[i].producers.end()), ops[i].producers.end());
    ops[i].choosable = random() % 5 != 0;
  }
  drawn problem{{std::move(ops)}, {}, plan{operators}};
  problem.costs.seconds.resize(operators);
  problem.costs.tensors = comp::detail::shared_tensors(problem.graph);
  const double cast = std::vector{0.0, 0.1, 1.0, 3.0}[random() % 4];
  for (auto& tensor : problem.costs.tensors) tensor.cast_seconds = cast * share();
  for (std::size_t i = 0; i < operators; ++i) {
    auto& seconds = problem.costs.seconds[i];
    seconds.fill(never);
    if (!problem.graph[i].choosable) {
      seconds[0] = 0;
    } else if (random() % 8 == 0) {  // fixed
      problem.start[i] = lows[random() % lows.size()];
      seconds[index_of(problem.start[i])] = share();
    } else {
      seconds[0] = 0.1 + share();
      for (const precision low : lows) {
        if (random() % 8 != 0) seconds[index_of(low)] = seconds[0] * (0.3 + share());
      }
    }
  }
  return problem;
}

double cheapest_of_all(const plan_costs& costs, plan p, std::size_t from = 0) {
  if (from == p.size()) return costs.seconds_of(p);
  double best = never;
  for (const precision each : comp::all_precisions) {
    if (!(costs.seconds[from][index_of(each)] < never)) continue;
    p[from] = each;
    best = std::min(best, cheapest_of_all(costs, p, from + 1));
  }
  return best;
}

}  // namespace

TEST_CASE("the plan of two precisions is the best that brute force finds") {
  std::mt19937_64 random{11};
  std::size_t mixed = 0;
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const drawn given = draw(random, 1 + random() % 11, {precision::bf16});
    const plan found = min_cut_plan(given.costs, given.start);
    CHECK(given.costs.seconds_of(found) == doctest::Approx(cheapest_of_all(given.costs, given.start)).epsilon(1e-9));
    mixed += found.count_low() > 0 && found.count_low() < found.size();
  }
  CHECK(mixed > 100);
}

TEST_CASE("the plan of three precisions is within 5% of the best, and no worse than where it starts") {
  std::mt19937_64 random{12};
  double worst = 1;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const drawn given = draw(random, 1 + random() % 7, {precision::bf16, precision::fp8_e4m3});
    const double found = given.costs.seconds_of(min_cut_plan(given.costs, given.start));
    const double best = cheapest_of_all(given.costs, given.start);
    CHECK(found >= best * (1 - 1e-9));
    CHECK(found <= given.costs.seconds_of(given.start) * (1 + 1e-9));
    if (best > 0) worst = std::max(worst, found / best);
  }
  CHECK(worst < 1.05);
}

TEST_CASE("what the model's author fixed reads and makes tensors of its own, which a view does not") {
  std::vector<comp::op_info> ops{
      {.name = "a"}, {.name = "b", .producers = {0}, .choosable = false}, {.name = "c", .producers = {1}}};
  CHECK(comp::detail::shared_tensors(ops)[0].readers == std::vector<std::uint32_t>{2});
  ops[1].author = comp::author_choice::autocast_off;
  CHECK(comp::detail::shared_tensors(ops)[0].readers == std::vector<std::uint32_t>{1});
  CHECK(comp::detail::shared_tensors(ops)[1].readers == std::vector<std::uint32_t>{2});
}

TEST_CASE("a tensor that many read is cast once, and a view hands it on") {
  // a -> view -> three readers that win 0.4 each; a cast takes 1. Cast for each they would not pay.
  const comp::op_graph graph{{{.name = "a"},
                              {.name = "view", .producers = {0}, .choosable = false},
                              {.name = "x", .producers = {1}},
                              {.name = "y", .producers = {1}},
                              {.name = "z", .producers = {1}}}};
  plan_costs costs{std::vector<comp::per_precision>(5), comp::detail::shared_tensors(graph)};
  for (auto& tensor : costs.tensors) tensor.cast_seconds = 1;
  for (std::size_t i = 0; i < 5; ++i) {
    costs.seconds[i].fill(never);
    costs.seconds[i][0] = 1;
    if (i >= 2) costs.seconds[i][index_of(precision::bf16)] = 0.6;
  }
  CHECK(min_cut_plan(costs, plan{5}).str() == "11bbb");
  SUBCASE("two of them do not pay for it") {
    costs.seconds[4][index_of(precision::bf16)] = never;
    CHECK(min_cut_plan(costs, plan{5}).str() == "11111");
  }
}

TEST_CASE("of equal plans the one that is started from stays") {
  plan_costs costs{std::vector<comp::per_precision>(3), {}};
  for (auto& each : costs.seconds) each.fill(1);
  for (const char* start : {"111", "b1b", "0te"}) CHECK(min_cut_plan(costs, comp::parse_plan(start)).str() == start);
}

TEST_CASE("the time of a cut grows with the operators, not with their square") {
  const auto seconds_for = [](std::size_t operators) {
    std::mt19937_64 random{13};
    const drawn given = draw(random, operators, {precision::bf16});
    const double begin = processor_seconds();
    const plan found = min_cut_plan(given.costs, given.start);
    CHECK(given.costs.seconds_of(found) < given.costs.seconds_of(given.start));
    return processor_seconds() - begin;
  };
  CHECK(seconds_for(32'000) < 30 * seconds_for(4'000));
}

TEST_CASE("no operators: an empty plan") { CHECK(min_cut_plan({}, {}).empty()); }

TEST_CASE("what a cut cannot start from is refused") {
  plan_costs costs{std::vector<comp::per_precision>(2), {}};
  for (auto& each : costs.seconds) each.fill(1);
  costs.seconds[1][index_of(precision::fp16)] = never;
  CHECK_THROWS_WITH_AS((void)min_cut_plan(costs, plan{3}),
                       "plan of 3 operators for the costs of 2 (they must agree): start from a plan of this model",
                       comp::settings_error);
  CHECK_THROWS_WITH_AS(
      (void)min_cut_plan(costs, comp::parse_plan("10")),
      "operator 1 starts in fp16, whose time is inf (it must be finite and allowed): start from another plan",
      comp::settings_error);
}
