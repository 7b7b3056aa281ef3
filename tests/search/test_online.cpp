// SPDX-License-Identifier: Apache-2.0
// A search in a loop that comp does not own: it finds what a search of the same trainer finds that cannot restore its
// state, loses no batch, and says what is wrong.
#include <doctest/doctest.h>

#include <algorithm>
#include <comp/search/online.hpp>
#include <string>
#include <vector>

#include "fake_search.hpp"

using comp::plan;

namespace {

fake::world world_of_a_loop(double harm = 0) {
  fake::world world{.graph = fake::chain({"allow", "deny", "allow", "relu"}), .batches = 40};
  world.seconds = [](const plan& p) {
    double seconds = 8;
    for (const auto low : p) seconds -= comp::is_low(low) ? 1 : 0;
    return seconds;
  };
  world.harm = fake::harmed_by({1}, harm);
  return world;
}

// Trains `batches` batches in a loop of its own.
void loop(fake::minimal_trainer& trainer, comp::online& search, std::uint64_t batches) {
  for (std::uint64_t k = 0; k < batches; ++k) {
    trainer.set_precision(search.plan());
    search.tell(trainer.run_batch());
  }
}

const comp::loop_info two_formats{.precisions = {comp::precision::fp32, comp::precision::bf16},
                                  .batches_per_epoch = 40};

}  // namespace

TEST_CASE("a loop finds what a search of the same trainer finds, and trains each batch once") {
  for (const double harm : {0.0, 0.1, 1.0, 10.0}) {
    CAPTURE(harm);
    fake::minimal_trainer searched{world_of_a_loop(harm)};
    const comp::outcome expected = comp::two_stage<fake::lists>{}.run(searched);

    fake::minimal_trainer trainer{world_of_a_loop(harm)};
    comp::online search{fake::lists{}, trainer.graph(), {.batches_per_epoch = 40}};
    CHECK(search.plan() == plan{4});  // FP32 first, and nothing is trained by asking
    CHECK(search.plan() == plan{4});
    CHECK(trainer.count().batches == 0);
    loop(trainer, search, searched.count().batches + 1);
    REQUIRE(search.found() != nullptr);
    CHECK(search.found()->plan == expected.plan);
    CHECK(search.found()->speedup == doctest::Approx(expected.speedup));
    CHECK(trainer.count().batches == searched.count().batches + 1);
    CHECK(search.found()->trained_batches == searched.count().batches);
  }
}

TEST_CASE("a plan whose harm is seen in the training alone is left for FP32") {
  fake::minimal_trainer trainer{world_of_a_loop(0.1)};
  comp::online search{fake::lists{}, trainer.graph(), two_formats};
  loop(trainer, search, 3000);
  CHECK(search.plan() == plan{4});
}

TEST_CASE("a loop that keeps its state is back before the last block of a plan that is rejected") {
  for (const double harm : {1e6, fake::nan}) {
    CAPTURE(harm);
    fake::trainer trainer{world_of_a_loop(harm)};
    fake::state kept;
    std::size_t undone = 0;
    comp::loop_info keeps{.precisions = two_formats.precisions, .batches_per_epoch = 40};
    keeps.save = [&] { kept = trainer.save(); };
    keeps.restore = [&] {
      CHECK(trainer.weights().steps - kept.steps <= 40);  // a block, or an epoch of the training after the search
      undone += trainer.weights().steps - kept.steps;
      trainer.restore(kept);
    };
    comp::online search{fake::lists{}, trainer.graph(), keeps};
    for (int k = 0; k < 4000; ++k) {
      (void)search.plan();  // asking twice changes nothing
      loop(trainer, search, 1);
    }
    REQUIRE(search.found() != nullptr);
    CHECK(search.found()->plan.str() == "b1bb");
    CHECK(search.found()->damaged_since == std::nullopt);
    CHECK(undone > 0);
    CHECK(trainer.weights().error < 1);
  }
}

TEST_CASE("a state that the last batch of a block has damaged is not kept, although its loss was finite") {
  for (std::uint64_t at = 40; at < 200; at += 3) {
    CAPTURE(at);
    fake::trainer trainer{world_of_a_loop()};
    fake::state kept;
    bool damaged = false;
    comp::loop_info keeps{.precisions = two_formats.precisions, .batches_per_epoch = 40};
    keeps.save = [&] {
      CHECK_FALSE(damaged);
      kept = trainer.save();
    };
    keeps.restore = [&] { trainer.restore(kept), damaged = false; };
    keeps.is_sound = [&] { return !damaged; };
    comp::online search{fake::lists{}, trainer.graph(), keeps};
    std::uint64_t lost = 0;
    for (std::uint64_t k = 0; k < 2000; ++k) {
      trainer.set_precision(search.plan());
      comp::sample of_batch = trainer.run_batch();
      if (damaged) of_batch.loss = fake::nan, ++lost;
      damaged = damaged || (k >= at && comp::is_low(trainer.now()[1]));
      search.tell(of_batch);
    }
    REQUIRE(search.found() != nullptr);
    CHECK(search.found()->plan[1] == comp::precision::fp32);
    CHECK_FALSE(damaged);
    CHECK(lost < 40);
  }
}

TEST_CASE("a plan whose batches fail after the search is given up") {
  fake::trainer trainer{world_of_a_loop()};
  fake::state kept;
  comp::loop_info keeps{.precisions = two_formats.precisions, .batches_per_epoch = 40};
  keeps.save = [&] { kept = trainer.save(); };
  keeps.restore = [&] { trainer.restore(kept); };
  comp::online search{fake::lists{}, trainer.graph(), keeps};
  while (search.found() == nullptr) loop(trainer, search, 1);
  int failures = 0;
  for (int k = 0; k < 400; ++k) {
    trainer.set_precision(search.plan());
    const bool fails = comp::is_low(trainer.now()[0]);
    failures += fails ? 1 : 0;
    search.tell(fails ? comp::sample{.status = comp::status::failed, .message = "it raised"} : trainer.run_batch());
  }
  CHECK(failures < 40);
  CHECK(search.found()->plan[0] == comp::precision::fp32);
}

TEST_CASE("a loop says how a plan is run, and when nothing is compared any more") {
  fake::minimal_trainer trainer{world_of_a_loop()};
  comp::loop_info says{.precisions = two_formats.precisions, .batches_per_epoch = 40};
  says.execution = [](const plan& p) { return comp::execution{{"letters", p.str(), {}}}; };
  comp::online search{fake::lists{}, trainer.graph(), says, {.planned_epochs = 20}};
  loop(trainer, search, 60);
  CHECK_FALSE(search.is_over());
  loop(trainer, search, 2000);
  CHECK(search.is_over());
  REQUIRE(search.found() != nullptr);
  REQUIRE(search.found()->execution.size() == 1);
  CHECK(search.found()->execution[0].value == "bbbb");
}

TEST_CASE("a loop times its operators when it is asked to, and the batches in a low format are undone") {
  fake::trainer trainer{world_of_a_loop()};
  fake::state kept;
  comp::loop_info timed{.precisions = two_formats.precisions, .batches_per_epoch = 40};
  timed.save = [&] { kept = trainer.save(); };
  std::vector<std::string> asked;
  std::size_t undone = 0;
  timed.restore = [&] {
    undone += trainer.weights().steps - kept.steps;
    trainer.restore(kept);
  };
  timed.times = [&] {
    asked.push_back(trainer.now().str());
    std::vector<comp::op_time> times;
    for (const auto p : trainer.now()) times.push_back({comp::is_low(p) ? 1.0 : 2.0, 0});
    return times;
  };
  comp::online search{fake::lists{}, trainer.graph(), timed};
  loop(trainer, search, 2000);
  CHECK(asked == std::vector<std::string>{"1111", "bbbb"});
  CHECK(undone == 2);
  REQUIRE(search.found() != nullptr);
  CHECK(search.found()->plan.str() == "bbbb");
  CHECK(search.found()->trials.size() > 0);
}

TEST_CASE("a plan is compared with one that was accepted before, which is blamed for nothing") {
  fake::trainer trainer{world_of_a_loop(fake::nan)};
  fake::state kept;
  comp::loop_info keeps{.precisions = two_formats.precisions, .batches_per_epoch = 40};
  keeps.save = [&] { kept = trainer.save(); };
  keeps.restore = [&] { trainer.restore(kept); };
  comp::online search{fake::lists{}, trainer.graph(), keeps};
  loop(trainer, search, 4000);
  REQUIRE(search.found() != nullptr);
  CHECK(search.found()->plan.str() == "b1bb");
  CHECK(std::ranges::any_of(search.found()->trials, [](const comp::trial& t) {
    return t.stage == comp::stage::baseline && t.label == "accepted plan in turns" && t.plan.count_low() > 0;
  }));
  CHECK(trainer.weights().error < 1);
}

TEST_CASE("seconds are those between plan() and tell() unless the loop gives them") {
  fake::minimal_trainer trainer{world_of_a_loop()};
  comp::online search{fake::lists{}, trainer.graph(), two_formats};
  for (int k = 0; k < 3000; ++k) {
    trainer.set_precision(search.plan());
    search.tell({.loss = trainer.run_batch().loss});
  }
  REQUIRE(search.found() != nullptr);
  CHECK(search.found()->plan.str() == "bbbb");
}

TEST_CASE("a loop may end at any batch") {
  for (const std::uint64_t batches : {0, 1, 39, 41, 100, 500}) {
    fake::minimal_trainer trainer{world_of_a_loop()};
    comp::online search{fake::lists{}, trainer.graph(), two_formats};
    loop(trainer, search, batches);
    CHECK(trainer.count().batches == batches);
  }
}

TEST_CASE("after the planned training its last plan stays") {
  fake::minimal_trainer trainer{world_of_a_loop()};
  comp::online search{fake::lists{}, trainer.graph(), two_formats, {.planned_epochs = 20}};
  loop(trainer, search, 2000);
  CHECK(search.plan().str() == "bbbb");
}

TEST_CASE("a batch that nobody asked for is refused, and what FP32 cannot do is told once") {
  fake::minimal_trainer trainer{world_of_a_loop()};
  comp::online search{fake::lists{}, trainer.graph(), two_formats};
  CHECK_THROWS_WITH_AS(search.tell({.loss = 1}),
                       "tell() without plan() before it (each batch trains under a plan): call plan() before the batch",
                       comp::error);
  const auto lose = [&] {
    for (int k = 0; k < 100; ++k) {
      (void)search.plan();
      search.tell({.loss = fake::nan});
    }
  };
  CHECK_THROWS_AS(lose(), comp::error);
  CHECK(search.plan() == plan{4});
  CHECK(search.found() == nullptr);
  comp::online wrong{fake::lists{}, trainer.graph(), {}, {.tolerance = -1}};
  CHECK_THROWS_AS((void)wrong.plan(), comp::settings_error);
}

TEST_CASE("a plan whose harm is beyond doubt trains 16 batches in turns that are three times as long") {
  for (const double harm : {10.0, 1e6}) {
    CAPTURE(harm);
    fake::world world = world_of_a_loop(harm);
    world.batches = 300;
    fake::minimal_trainer trainer{world};
    comp::online search{
        fake::lists{}, trainer.graph(), {.precisions = two_formats.precisions, .batches_per_epoch = 300}};
    std::size_t in_row = 0, most = 0;
    for (int k = 0; k < 2000; ++k) {
      trainer.set_precision(search.plan());
      in_row = comp::is_low(trainer.now()[1]) ? in_row + 1 : 0;
      most = std::max(most, in_row);
      search.tell(trainer.run_batch());
    }
    CHECK(most > 0);
    CHECK(most <= 20);
  }
}

TEST_CASE("a plan that is known trains after a few batches in FP32, and is guarded") {
  const plan known = comp::parse_plan("bbbb");
  for (const double harm : {0.0, 0.3, 1e6, fake::nan}) {
    CAPTURE(harm);
    fake::trainer trainer{world_of_a_loop(harm)};
    fake::state kept;
    comp::loop_info keeps{.precisions = two_formats.precisions, .batches_per_epoch = 40};
    keeps.save = [&] { kept = trainer.save(); };
    keeps.restore = [&] { trainer.restore(kept); };
    comp::online search{comp::outcome{.plan = known}, trainer.graph(), keeps};
    for (int k = 0; k < 40; ++k) {
      CHECK(search.plan() == plan{4});
      loop(trainer, search, 1);
    }
    CHECK(search.plan() == known);
    REQUIRE(search.found() != nullptr);
    loop(trainer, search, 3000);
    CHECK((search.found()->plan == known) == (harm == 0));
    CHECK(comp::is_low(search.found()->plan[1]) == (harm == 0));
    CHECK(trainer.weights().error < 1);
  }
  fake::minimal_trainer trainer{world_of_a_loop()};
  comp::online of_another{comp::outcome{.plan = plan{2}}, trainer.graph(), two_formats};
  CHECK_THROWS_AS((void)of_another.plan(), comp::plan_error);
}
