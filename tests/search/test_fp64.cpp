// SPDX-License-Identifier: Apache-2.0
// Searches in trainings that are written in FP64, or in FP64 and FP32.
#include <doctest/doctest.h>

#include <comp/files/plan_file.hpp>
#include <comp/observe/progress_bar.hpp>
#include <comp/observe/report.hpp>
#include <comp/observe/summary.hpp>
#include <comp/policy/custom.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/online.hpp>
#include <comp/search/paper_search.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/two_stage.hpp>

#include "fake_trainer.hpp"

using comp::plan;
using comp::precision;

namespace {

constexpr precision d = precision::fp64, s = precision::fp32, b = precision::bf16;

/// A chain of which `wide` operators are written in FP64.
comp::op_graph mixed_chain(const std::vector<std::string>& kinds, std::size_t wide) {
  const comp::op_graph chain = fake::chain(kinds);
  std::vector<comp::op_info> ops{chain.begin(), chain.end()};
  for (std::size_t i = 0; i < wide; ++i) ops[i].as_written = d;
  return {std::move(ops)};
}

/// Distances, three layers and a sum. FP32 halves the time of each; in the first and the last it harms.
fake::world potential(std::size_t wide = 5) {
  fake::world w{.graph = mixed_chain({"cdist", "linear", "tanh", "linear", "sum"}, wide), .precisions = {d, s, b}};
  const auto seconds_of = [](precision p) { return p == d ? 2.0 : p == s ? 1.0 : 0.5; };
  w.seconds = [=](const plan& p) {
    double all = 0;
    for (std::size_t i = 0; i < p.size(); ++i) all += seconds_of(p[i]) + (i > 0 && p[i] != p[i - 1] ? 0.05 : 0);
    return all;
  };
  w.profile = [=](const plan& p) {
    std::vector<comp::op_time> all;
    for (const precision each : p) all.push_back({.forward = seconds_of(each) / 2, .backward = seconds_of(each) / 2});
    return all;
  };
  w.harm = [wide](const plan& p) { return (p[0] != d ? 0.1 : 0) + (wide == 5 && p[4] != d ? 0.1 : 0); };
  return w;
}

comp::outcome search(auto& trainer, const comp::search_settings& settings = {}, auto&&... observers) {
  return comp::two_stage<comp::policy::pytorch>{.settings = settings}.run(trainer, observers...);
}

const comp::contestant* contestant(const comp::outcome& found, std::string_view label) {
  for (const comp::contestant& c : found.contest) {
    if (c.label.find(label) != std::string::npos) return &c;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("of a training in FP64 the operators that can are found in FP32, and those that need it stay") {
  fake::full_trainer trainer{potential()};
  const comp::outcome found = search(trainer);
  CHECK(found.plan.str() == "d111d");
  CHECK(found.precisions == std::vector{d, s});  // BF16 is not tried unless it is asked for
  CHECK(found.speedup == doctest::Approx(10 / 7.1).epsilon(0.01));
  CHECK(found.fallbacks.back() == plan{d, d, d, d, d});
  CHECK(name(found.plan, found.graph) == "all but 0 and 4 in fp32");
  CHECK(found.contest.front().label == "as written");
  CHECK(comp::summary(found)["title"].get<std::string>().find("times as fast as the model as written") !=
        std::string::npos);
  CHECK(comp::table(found).find("vs FP64") != std::string::npos);
  CHECK(comp::table(found).find("FP32") == std::string::npos);
  const comp::contestant* all_low = contestant(found, "rule-based all fp32");
  REQUIRE(all_low != nullptr);
  CHECK(all_low->plan == plan{s, s, s, s, s});
  REQUIRE(contestant(found, "rule-based fp32") != nullptr);
  CHECK(contestant(found, "rule-based fp32")->plan == plan{d, s, s, s, d});  // products, and what follows them
  for (const comp::trial& t : found.trials) CHECK(std::ranges::count(t.plan, b) == 0);
}

TEST_CASE("lower precisions are tried for operators in FP64 if they are asked for") {
  fake::full_trainer trainer{potential()};
  const comp::outcome found = search(trainer, {.precisions = {s, b}});
  CHECK(found.plan.str() == "dbbbd");
}

TEST_CASE("of a training in FP64 and FP32 each operator is lowered from the precision that it is written in") {
  fake::full_trainer trainer{potential(2)};
  const comp::outcome found = search(trainer);
  CHECK(found.precisions == std::vector{d, s, b});
  CHECK(found.plan.str() == "d1bbb");
}

TEST_CASE("the paper's search and one in the user's own loop find FP64 where it is needed") {
  fake::trainer paper{potential()};
  const comp::outcome by_paper = comp::paper_search{comp::policy::pytorch{}, s}.run(paper);
  CHECK(by_paper.plan.str() == "d111d");

  fake::trainer world{potential()};
  comp::online loop{comp::policy::pytorch{}, world.graph(), {.precisions = {d, s, b}, .batches_per_epoch = 10}};
  CHECK(loop.plan() == comp::as_written(world.graph()));
  for (int k = 0; k < 600; ++k) {
    world.set_precision(loop.plan());
    const comp::sample got = world.run_batch();
    loop.tell({.loss = got.loss, .seconds = got.seconds});
  }
  CHECK(loop.plan().str().front() == 'd');
}

TEST_CASE("a training in FP64 goes on under its plan, and back to FP64 when that begins to harm") {
  fake::full_trainer trainer{potential()};
  comp::outcome found = search(trainer, {.planned_epochs = 60});
  REQUIRE(found.plan.str() == "d111d");
  trainer.change().harm = [](const plan& p) { return p[1] != d ? 0.5 : 0.0; };
  const comp::training_result after = comp::post_training{.epochs = 60}.run(trainer, found);
  REQUIRE(!after.fallbacks.empty());
  CHECK(after.fallbacks.back().to[1] == d);
}

TEST_CASE("a plan file says which operators are written in FP64, and no plan widens an operator") {
  const comp::op_graph graph = mixed_chain({"linear", "linear", "linear"}, 2);
  const std::string path = "fp64_plan.json";
  comp::save(plan{d, s, b}, graph, {}, path);
  CHECK(comp::load_plan(path, graph).plan == plan{d, s, b});
  const comp::plan_listing listing = comp::load_listing(path);
  CHECK((*listing.operators)[1].as_written == d);
  CHECK((*listing.operators)[2].as_written == s);
  CHECK(listing.lowers());
  CHECK_THROWS_WITH_AS(comp::require_fits(plan{d, d, d}, graph),
                       doctest::Contains("written in fp32, and plans only lower"), comp::plan_error);
  CHECK_THROWS_AS(comp::load_plan(path, fake::chain({"linear", "linear", "linear"})), comp::plan_error);
}

TEST_CASE("FP64 that nothing is written in, or that the trainer lacks, is refused in a sentence") {
  fake::full_trainer in_fp32{potential(0)};
  CHECK_THROWS_WITH_AS(search(in_fp32, {.precisions = {d}}), doctest::Contains("no operator is written in it"),
                       comp::settings_error);
  fake::world lacking = potential();
  lacking.precisions = {s, b};
  fake::full_trainer on_such_device{lacking};
  CHECK_THROWS_WITH_AS(search(on_such_device),
                       doctest::Contains("the model has operators in fp64 (the backend supports fp32, bf16)"),
                       comp::settings_error);
}

namespace {

/// A training whose losses are `scale` times those of its world.
struct scaled_trainer final : fake::full_trainer {
  scaled_trainer(fake::world w, double factor) : full_trainer{std::move(w)}, scale{factor} {}
  comp::sample run_batch() { return of(full_trainer::run_batch()); }
  comp::sample run_epoch(const comp::stop_predicate& stop) {
    return of(full_trainer::run_epoch([&](const comp::sample& so_far) { return stop && stop(of(so_far)); }));
  }
  comp::sample run_epoch() { return of(full_trainer::run_epoch()); }
  comp::sample of(comp::sample got) const {
    got.loss *= scale;
    for (double& loss : got.curve) loss *= scale;
    return got;
  }
  double scale;
};

}  // namespace

TEST_CASE("losses from 1 to 1e-12 are judged alike") {
  for (const double scale : {1.0, 1e-6, 1e-12}) {
    CAPTURE(scale);
    scaled_trainer trainer{potential(), scale};
    CHECK(search(trainer).plan.str() == "d111d");
  }
}

TEST_CASE("below the floor of losses nothing harms, in the search and in the training after it") {
  scaled_trainer trainer{potential(), 1e-12};
  const comp::outcome found = search(trainer, {.floor = 1e-6});
  CHECK(found.plan.str() == "11111");
  CHECK(found.baseline.loss == 1e-6);
  CHECK(comp::post_training{.epochs = 3}.run(trainer, found).fallbacks.empty());

  scaled_trainer above{potential(), 1e-12};
  CHECK(search(above, {.floor = 1e-15}).plan.str() == "d111d");
  CHECK_THROWS_AS(search(above, {.floor = -1}), comp::settings_error);
  CHECK_THROWS_AS(search(above, {.floor = 1e-6, .direction = comp::loss_direction::higher_is_better}),
                  comp::settings_error);
}
