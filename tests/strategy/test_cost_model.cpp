// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp/strategy/cost_model.hpp>
#include <limits>
#include <random>
#include <string>
#include <vector>

using comp::cost_model;
using comp::index_of;
using comp::op_time;
using comp::plan;
using comp::precision;

namespace {

constexpr double no_number = std::numeric_limits<double>::quiet_NaN(), never = std::numeric_limits<double>::infinity();

// A DAG of three kinds with sizes, and views.
comp::op_graph drawn_graph(std::mt19937_64& random, std::size_t operators) {
  std::vector<comp::op_info> ops(operators);
  for (std::size_t i = 0; i < operators; ++i) {
    ops[i] = {.name = std::to_string(i), .kind = std::vector{"conv", "relu", "norm"}[random() % 3]};
    const auto n = static_cast<std::int64_t>(1000 * (1 + random() % 50));
    ops[i].outputs = {{.shape = {n}}};
    ops[i].bytes = 8 * n;
    ops[i].flops = ops[i].kind == "conv" ? 600 * n : n;
    if (i > 0) ops[i].producers = {i - 1 - random() % std::min<std::size_t>(i, 3)};
    ops[i].choosable = random() % 6 != 0;
  }
  return {std::move(ops)};
}

std::vector<std::vector<precision>> levels_of(const comp::op_graph& graph,
                                              std::vector<precision> lows = {precision::bf16}) {
  std::vector<std::vector<precision>> all;
  for (const auto& op : graph) {
    auto& levels = all.emplace_back(1, precision::fp32);
    if (op.choosable) levels.insert(levels.end(), lows.begin(), lows.end());
  }
  return all;
}

plan all_low(const comp::op_graph& graph) {
  plan p{graph.size()};
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = graph[i].choosable ? precision::bf16 : precision::fp32;
  return p;
}

plan drawn_plan(std::mt19937_64& random, const comp::op_graph& graph, std::size_t one_in = 2) {
  plan p{graph.size()};
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (graph[i].choosable && random() % one_in == 0) p[i] = precision::bf16;
  }
  return p;
}

// What plans truly cost: a sum, with casts in proportion to bytes.
struct truth {
  comp::plan_costs costs;
  double constant = 0;

  truth(std::mt19937_64& random, const comp::op_graph& graph, double per_byte) {
    const auto share = [&] { return std::uniform_real_distribution<double>{0, 1}(random); };
    costs = {std::vector<comp::per_precision>(graph.size()), comp::detail::shared_tensors(graph)};
    for (std::size_t i = 0; i < graph.size(); ++i) {
      if (!graph[i].choosable) continue;
      costs.seconds[i][0] = 1e-4 * (0.2 + share());
      costs.seconds[i][index_of(precision::bf16)] = costs.seconds[i][0] * (0.3 + 0.9 * share());
    }
    for (auto& t : costs.tensors)
      t.cast_seconds = per_byte * 4 * static_cast<double>(graph[t.producer].outputs[0].shape[0]);
    constant = 2e-4;
  }
  double operator()(const plan& p) const { return constant + costs.seconds_of(p); }
  std::vector<op_time> profile(const plan& p) const {
    std::vector<op_time> times;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double all = costs.seconds[i][index_of(p[i])];
      times.push_back({.forward = all / 3, .backward = all - all / 3});
    }
    return times;
  }
};

bool same(const comp::plan_costs& a, const comp::plan_costs& b) {
  const auto same_tensor = [](const auto& x, const auto& y) { return x.cast_seconds == y.cast_seconds; };
  return a.seconds == b.seconds &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), same_tensor);
}

}  // namespace

TEST_CASE("a profile that cannot be true is refused, and what was known stays") {
  std::mt19937_64 random{1};
  const comp::op_graph graph = drawn_graph(random, 12);
  const truth world{random, graph, 1e-9};
  std::vector<op_time> times = world.profile(plan{12});
  SUBCASE("too short") { times.pop_back(); }
  SUBCASE("too long") { times.push_back({1, 1}); }
  SUBCASE("none") { times.clear(); }
  SUBCASE("forward is NaN") { times[3].forward = no_number; }
  SUBCASE("backward is NaN") { times[11].backward = no_number; }
  SUBCASE("infinite") { times[0].forward = never; }
  SUBCASE("negative") { times[4].backward = -1e-9; }
  SUBCASE("all zero") { times.assign(12, {}); }
  for (const bool profiled : {false, true}) {
    CAPTURE(profiled);
    cost_model model{graph, levels_of(graph)};
    if (profiled) REQUIRE(model.learn_profile(plan{12}, world.profile(plan{12})));
    const comp::plan_costs before = model.costs();
    CHECK_FALSE(model.learn_profile(plan{12}, times));
    CHECK(same(before, model.costs()));
  }
}

TEST_CASE("operators that a profile saw at zero keep zero, and nothing becomes NaN") {
  std::mt19937_64 random{2};
  const comp::op_graph graph = drawn_graph(random, 12);
  cost_model model{graph, levels_of(graph)};
  std::vector<op_time> times(12);
  times[5] = {1e-3, 2e-3};
  REQUIRE(model.learn_profile(plan{12}, times));
  REQUIRE(model.learn_profile(all_low(graph), times));
  model.learn_batch(plan{12}, 4e-3);
  for (const auto& each : model.costs().seconds) {
    CHECK((each[0] >= 0 && each[0] < never));
    CHECK_FALSE(std::isnan(each[index_of(precision::bf16)]));
  }
  CHECK(model.batch_seconds(plan{12}) == doctest::Approx(4e-3).epsilon(0.01));
}

TEST_CASE("where costs are a sum, two profiles and a few batches predict every plan") {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random{seed};
    const comp::op_graph graph = drawn_graph(random, 8 + random() % 40);
    const truth world{random, graph, 1e-10 * static_cast<double>(1 + random() % 8)};
    cost_model model{graph, levels_of(graph)};
    const plan fp32{graph.size()}, low = all_low(graph);
    model.learn_batch(fp32, world(fp32));
    REQUIRE(model.learn_profile(fp32, world.profile(fp32)));
    REQUIRE(model.learn_profile(low, world.profile(low)));
    for (const plan& p : {low, drawn_plan(random, graph), drawn_plan(random, graph, 3)}) model.learn_batch(p, world(p));
    CHECK(model.batch_seconds(fp32) == doctest::Approx(world(fp32)).epsilon(0.01));
    CHECK(model.batch_seconds(low) == doctest::Approx(world(low)).epsilon(0.01));
    for (int round = 0; round < 20; ++round) {
      const plan p = drawn_plan(random, graph, 1 + random() % 4);
      worst = std::max(worst, std::abs(std::log(model.batch_seconds(p) / world(p))));
    }
  }
  CHECK(worst < 0.02);
}

TEST_CASE("casts that are ten times dearer or cheaper than bytes say are learned from a few batches") {
  for (const double per_byte : {0.05e-9, 0.5e-9, 5e-9}) {
    CAPTURE(per_byte);
    std::mt19937_64 random{7};
    const comp::op_graph graph = drawn_graph(random, 30);
    const truth world{random, graph, per_byte};
    cost_model model{graph, levels_of(graph)};
    const plan fp32{30}, low = all_low(graph);
    model.learn_batch(fp32, world(fp32));
    REQUIRE(model.learn_profile(fp32, world.profile(fp32)));
    REQUIRE(model.learn_profile(low, world.profile(low)));
    model.learn_batch(low, world(low));
    for (int i = 0; i < 3; ++i) {
      const plan p = drawn_plan(random, graph);
      model.learn_batch(p, world(p));
    }
    const plan unseen = drawn_plan(random, graph);
    CHECK(model.costs().casts(unseen) == doctest::Approx(world.costs.casts(unseen)).epsilon(0.15));
    CHECK(model.batch_seconds(unseen) == doctest::Approx(world(unseen)).epsilon(0.02));
  }
}

TEST_CASE("without a profile, operations and bytes say that contractions pay most") {
  std::mt19937_64 random{8};
  const comp::op_graph graph = drawn_graph(random, 20);
  cost_model model{graph, levels_of(graph)};
  model.learn_batch(plan{20}, 1e-2);
  const comp::plan_costs costs = model.costs();
  double least = never, most = 0;
  for (std::size_t i = 0; i < 20; ++i) {
    if (!graph[i].choosable) continue;
    const double saved = costs.seconds[i][0] - costs.seconds[i][index_of(precision::bf16)];
    CHECK(saved > 0);
    const double each = saved / static_cast<double>(graph[i].outputs[0].shape[0]);
    if (graph[i].kind == "conv") least = std::min(least, each);
    if (graph[i].kind != "conv") most = std::max(most, each);
  }
  CHECK(least > most);
  SUBCASE("and without sizes all count the same") {
    const comp::op_graph bare{{{.name = "a", .kind = "x"}, {.name = "b", .kind = "y"}}};
    cost_model blind{bare, levels_of(bare)};
    CHECK(blind.costs().seconds[0][0] == blind.costs().seconds[1][0]);
    CHECK(blind.costs().seconds_of(all_low(bare)) < blind.costs().seconds_of(plan{2}));
  }
}

TEST_CASE("an operator has no finite cost in a precision that it must not have") {
  const comp::op_graph graph{{{.name = "a", .kind = "x"}, {.name = "b", .kind = "y"}}};
  const cost_model model{graph, {{precision::bf16}, {precision::fp32, precision::fp16}}};
  const comp::plan_costs costs = model.costs();
  CHECK(costs.seconds[0][0] == never);
  CHECK(costs.seconds[0][index_of(precision::bf16)] < never);
  CHECK(costs.seconds[1][index_of(precision::bf16)] == never);
  CHECK(costs.seconds_of(comp::parse_plan("b0")) < never);
}

TEST_CASE("a batch time that is none is not learned") {
  std::mt19937_64 random{9};
  const comp::op_graph graph = drawn_graph(random, 10);
  cost_model model{graph, levels_of(graph)};
  for (const double seconds : {no_number, never, 0.0, -1.0}) {
    CAPTURE(seconds);
    const comp::plan_costs before = model.costs();
    model.learn_batch(plan{10}, seconds);
    CHECK(same(before, model.costs()));
    CHECK(std::isfinite(model.batch_seconds(plan{10})));
  }
}

TEST_CASE(
    "a tensor is cast once for all its readers in one precision, through views, and not for those that have its own") {
  const comp::op_graph graph{{{.name = "a"},
                              {.name = "view", .producers = {0}, .choosable = false},
                              {.name = "x", .producers = {1}},
                              {.name = "y", .producers = {0, 1}},
                              {.name = "z", .producers = {2, 3}}}};
  comp::plan_costs costs{std::vector<comp::per_precision>(5), comp::detail::shared_tensors(graph)};
  for (std::size_t i = 0; i < 5; ++i) costs.tensors[i].cast_seconds = i == 0 ? 100 : i == 1 ? 10'000 : 1;
  CHECK(costs.casts(comp::parse_plan("11111")) == 0);
  CHECK(costs.casts(comp::parse_plan("11bb1")) == 102);  // a once, x and y back for z
  CHECK(costs.casts(comp::parse_plan("11b01")) == 202);  // a in two precisions
  CHECK(costs.casts(comp::parse_plan("b1bbb")) == 0);
  CHECK(costs.casts(comp::parse_plan("b1b1b")) == 101);
}
