// SPDX-License-Identifier: Apache-2.0
// What else than the fastest plan by its losses a search may be for: scores, memory; and what takes FP32's place if
// that has no room.
#include <doctest/doctest.h>

#include <new>
#include <stdexcept>

#include "fake_search.hpp"

using comp::contestant;
using comp::outcome;
using comp::parse_plan;
using comp::plan;
using comp::precision;
using comp::stage;
using fake::warns;

namespace {

// Of 8 operators four are slower low; each that is low spares 10 of 1000 bytes.
fake::world thrifty() {
  fake::world world{.graph = fake::sized_chain(std::vector<std::string>(8, "relu")), .batches = 150};
  std::vector<comp::op_info> ops{world.graph.begin(), world.graph.end()};
  for (auto& op : ops) op.outputs = {{.shape = {1000}}};
  world.graph = {std::move(ops)};
  fake::timed_by(world, {std::vector(8, 1.0), {.5, .5, .5, .5, 1.01, 1.02, 1.03, 1.2}, 0});
  return world;
}

// Of six operators that are all twice as fast low.
fake::world six(std::size_t batches) {
  fake::world world{.graph = fake::sized_chain(std::vector<std::string>(6, "allow")), .batches = batches};
  fake::timed_by(world, {std::vector(6, 1.0), std::vector(6, 0.5), 0});
  return world;
}

// Its scores are its own, whatever its losses are.
class scored_trainer : public fake::full_trainer {
 public:
  explicit scored_trainer(fake::world w) : full_trainer{std::move(w)} {}
  double validate() {
    ++validated;
    return score(now()) + noise * std::fmod(1e9 * weights().error, 1);
  }
  std::function<double(const plan&)> score = [](const plan&) { return 0.9; };
  double noise = 0;  // by the last digits of the weights
  int validated = 0;
};

outcome search_on(fake::full_trainer& on, const comp::search_settings& settings = {}) {
  return comp::two_stage<fake::lists>{.settings = settings}.run(on);
}
outcome search_on(scored_trainer& on, const comp::search_settings& settings = {.criterion = comp::criterion::scores}) {
  return comp::two_stage<fake::lists>{.settings = settings}.run(on);
}

}  // namespace

TEST_CASE("the fastest plan within a memory limit") {
  const auto within = [](fake::world world, std::int64_t bytes) {
    fake::full_trainer trainer{std::move(world)};
    return search_on(trainer, {.memory_limit = bytes});
  };
  fake::world slower = thrifty();  // in it only plans slower than FP32 keep the limit
  fake::timed_by(slower, {std::vector(8, 1.0), std::vector(8, 1.05), 0});
  const outcome wide = within(thrifty(), 960), narrow = within(thrifty(), 940), slow = within(slower, 940);
  CHECK(wide.plan.count_low() >= 4);
  CHECK(narrow.plan.count_low() >= 6);  // slower operators too
  CHECK(slow.plan.count_low() >= 6);
  CHECK(slow.speedup < 1);
  for (const outcome* each : {&wide, &narrow, &slow}) CHECK(each->warnings.empty());
  const outcome none = within(thrifty(), 100);
  CHECK(warns(none, "memory limit of 100 bytes (the plan that won needs "));
  CHECK(none.speedup > 1);
}

TEST_CASE("noise keeps no plan from the place of an FP32 that is above the memory limit") {
  fake::world world{.graph = fake::sized_chain(std::vector<std::string>(4, "deny")), .batches = 150};
  std::vector<comp::op_info> ops{world.graph.begin(), world.graph.end()};
  for (auto& op : ops) op.outputs = {{.shape = {1000}}};
  world.graph = {std::move(ops)};
  fake::timed_by(world, {std::vector(4, 1.0), std::vector(4, 1.0), 0});
  world.noise = 1;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    fake::trainer staged{world, seed};
    CHECK(fake::search_with(staged, {.memory_limit = 995}).plan.count_low() > 0);
    fake::full_trainer guided{world, seed};
    CHECK(search_on(guided, {.memory_limit = 995}).plan.count_low() > 0);
  }
}

TEST_CASE("a part of what is accepted that fails in its race is not taken for one with less memory") {
  fake::world world = thrifty();
  world.before_batch = [](const plan& p, auto) {
    if (p.count_low() > 0 && p.count_low() < 8) throw std::runtime_error{"no kernel for mixed precisions"};
  };
  comp::search_settings settings;
  SUBCASE("for a slowdown") { settings.slowdown = 0.5; }
  SUBCASE("for a memory limit") { settings.memory_limit = 100; }
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer, settings);
  CHECK(found.plan.count_low() == 8);
  for (const contestant& c : found.contest) CHECK(c.status == comp::status::ok);
}

TEST_CASE("the least memory within a slowdown") {
  fake::full_trainer trainer{thrifty()};
  const auto lowered = [&](double slowdown) {
    const outcome found = search_on(trainer, {.slowdown = slowdown});
    CHECK(found.speedup > 1);
    CHECK(found.contest.front().peak_bytes == 1000);
    return found.plan.count_low();
  };
  CHECK(lowered(0) == 4);      // 6 seconds
  CHECK(lowered(0.011) == 7);  // 6.06
  CHECK(lowered(0.05) == 8);   // 6.26
}

TEST_CASE("a slowdown counts against the fastest plan, and FP32 has no advantage in it") {
  fake::world world = thrifty();
  fake::timed_by(world, {std::vector(8, 1.0), {.99, 1.01, 1.01, 1.01, 1.01, 1.01, 1.01, 1.01}, 0});
  fake::full_trainer trainer{world};
  CHECK(search_on(trainer, {.slowdown = 0.02}).plan.count_low() == 8);
}

TEST_CASE("the front holds what no other contestant beats in time, memory and loss") {
  outcome o;
  const auto with = [&](const char* p, double speed, std::int64_t bytes, double loss, bool rejected = false) {
    contestant& c = o.contest.emplace_back();
    c.plan = parse_plan(p);
    c.over_fp32.ratio = speed;
    c.peak_bytes = bytes;
    c.loss = comp::loss_verdict{.answer = rejected ? comp::loss_answer::rejected : comp::loss_answer::accepted,
                                .difference = loss,
                                .radius = 0.001};
  };
  with("111", 1, 1000, 0);
  with("b11", 1.5, 900, 0.004);
  with("bb1", 1.4, 950, 0.004);  // beaten by the one before
  with("bbb", 1.7, 1000, 0.009);
  with("1bb", 1.2, 700, 0.002);
  with("11b", 3, 100, -1, true);     // its losses were rejected
  with("1b1", 1.4999, 899, 0.0041);  // the same as the second but for noise
  CHECK(o.front() == std::vector<std::size_t>{3, 1, 6, 4, 0});
  o.contest[3].status = comp::status::out_of_memory;
  CHECK(o.front() == std::vector<std::size_t>{1, 6, 4, 0});
  CHECK(outcome{}.front().empty());
}

TEST_CASE("scores decide where they are asked for: an operator that damages them is left in FP32") {
  fake::world world = six(12);
  scored_trainer trainer{world};
  trainer.score = [](const plan& p) { return p[2] == precision::bf16 ? 0.85 : 0.9; };
  const outcome found = search_on(trainer, {.criterion = comp::criterion::scores, .budget = 0.2});
  CHECK(found.plan.str() == "bb1bbb");
  CHECK(found.criterion == comp::criterion::scores);
  CHECK(found.baseline.score == doctest::Approx(0.9));
  for (const comp::trial& t : found.trials) {
    if (t.stage == stage::losses) CHECK(t.sample.score.has_value());
  }
  scored_trainer by_losses{world};
  by_losses.score = trainer.score;
  CHECK(search_on(by_losses, {}).plan.str() == "bbbbbb");
  CHECK(by_losses.validated == 0);
}

TEST_CASE("a lower score is not held against a plan when FP32's own moves as far by roundings") {
  fake::world world = six(12);
  scored_trainer trainer{world};
  trainer.score = [](const plan& p) { return p.count_low() > 0 ? 0.88 : 0.9; };
  CHECK(search_on(trainer).plan.count_low() == 0);
  trainer.noise = 0.1;
  CHECK(search_on(trainer).plan.count_low() == 6);
}

TEST_CASE("scores that are no numbers, or that a backend has not, are refused in a sentence") {
  scored_trainer trainer{six(12)};
  trainer.score = [](const plan&) { return std::numeric_limits<double>::quiet_NaN(); };
  CHECK_THROWS_WITH_AS(search_on(trainer), doctest::Contains("FP32's score is not a number"), comp::error);
  fake::full_trainer without{six(12)};
  CHECK_THROWS_WITH_AS(search_on(without, {.criterion = comp::criterion::scores}),
                       doctest::Contains("this backend has no validate()"), comp::settings_error);
}

TEST_CASE("where FP32 has no room, the most conservative plan that has takes its place") {
  fake::world world = thrifty();
  world.before_batch = [](const plan& p, auto) {
    if (p.count_low() < 3) throw comp::out_of_memory{"no room"};
  };
  comp::search_settings settings;
  SUBCASE("by batches") {}
  SUBCASE("as the standard library says it") {
    world.before_batch = [](const plan& p, auto) {
      if (p.count_low() < 3) throw std::bad_alloc{};
    };
  }
  SUBCASE("by epochs") { settings.criterion = comp::criterion::epoch_losses; }
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer, settings);
  CHECK(found.plan.count_low() >= 3);
  CHECK(warns(found, "FP32 needs more memory than there is: the plan \"fp32 but "));
  CHECK(warns(found, "(3 of 8 operators are low in it, whose harm was looked for as far as memory allows)"));
  CHECK(found.contest.front().plan.count_low() == 3);
  CHECK_FALSE(warns(found, "ended with an exception"));
  CHECK(trainer.weights().steps == found.trained_batches);
}

TEST_CASE("where no plan has room the search says so") {
  fake::world world = thrifty();
  world.before_batch = [](const plan&, auto) { throw comp::out_of_memory{"no room for 3 GB"}; };
  fake::full_trainer trainer{world};
  CHECK_THROWS_WITH_AS(search_on(trainer), doctest::Contains("no room for 3 GB"), comp::error);
}

TEST_CASE("a plan is not given up because the machine became slow while it was judged") {
  fake::world world = six(150);
  double load = 1;
  world.seconds = [&load, plain = world.seconds](const plan& p) { return load * plain(p); };
  for (const std::uint64_t from : {12, 17, 20, 30}) {
    CAPTURE(from);
    world.before_batch = [&](const plan&, std::uint64_t batch) { load = batch >= from && batch < from + 60 ? 40 : 1; };
    fake::full_trainer trainer{world};
    CHECK(search_on(trainer).plan.count_low() == 6);
  }
}

TEST_CASE("a search can be stopped while FP32 is timed again") {
  fake::world world = six(150);
  double load = 1;
  int asked = 0, most = 0;
  world.seconds = [&load, plain = world.seconds](const plan& p) { return load * plain(p); };
  world.before_batch = [&](const plan&, std::uint64_t batch) { load = batch >= 20 ? 40 : 1; };
  struct impatient {
    const double& load;
    int &asked, &most;
    bool stop_requested() { return load > 1 && ++asked > most; }
  };
  for (most = 0; most < 12; ++most) {
    asked = 0;
    fake::full_trainer trainer{world};
    impatient stops{load, asked, most};
    CHECK_THROWS_AS(comp::two_stage<fake::lists>{}.run(trainer, stops), comp::interrupted);
    CHECK(trainer.weights().steps == 0);
  }
}

TEST_CASE("a search that trains more than was planned says so") {
  fake::world world = thrifty();
  world.batches = 4;
  fake::full_trainer trainer{world};
  const comp::two_stage search{
      fake::lists{}, comp::strategy::greedy{}, comp::strategy::greedy{}, {.planned_epochs = 2}};
  const outcome found = search.run(trainer);
  CHECK(found.trained_batches > 8);
  CHECK(warns(found, "the training was planned to have 8"));
  fake::full_trainer longer{world};
  CHECK(!warns(search_on(longer, {.planned_epochs = 200}), "was planned"));
}
