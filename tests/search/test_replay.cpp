// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/trainer/replay.hpp>
#include <comp/search/two_stage.hpp>
#include <comp/strategy/exhaustive.hpp>

#include "fake_trainer.hpp"

using comp::plan;
using comp::sample;
using comp::stage;
using comp::trial;

namespace {

plan letters(const char* text) { return comp::parse_plan(text); }

sample epoch_of(std::vector<double> curve, std::vector<double> seconds) {
  sample s;
  s.curve = std::move(curve), s.batch_seconds = std::move(seconds);
  s.batches = static_cast<std::int64_t>(s.curve.size());
  s.loss = 0;
  for (const double loss : s.curve) s.loss += loss / static_cast<double>(s.batches);
  for (const double each : s.batch_seconds) s.seconds += each;
  return s;
}

trial run_of(stage where, const char* p, sample s) {
  return {.stage = where, .plan = letters(p), .sample = std::move(s)};
}
trial batch_of(const char* p, double seconds) {
  return run_of(stage::times, p, {.loss = 9, .seconds = seconds, .batches = 1});
}

std::vector<trial> made_up() {
  sample failed;
  failed.status = comp::status::out_of_memory;
  sample diverged = epoch_of({3, 5}, {1, 1});
  diverged.status = comp::status::diverged;
  return {run_of(stage::baseline, "111", epoch_of({3, 2, 1}, {4, 5, 6})),
          run_of(stage::losses, "b11", epoch_of({3.1, 2.1, 1.1}, {2, 3, 4})),
          run_of(stage::losses, "bb1", diverged),
          run_of(stage::losses, "bbb", failed),
          run_of(stage::training, "b11", epoch_of({1, 1, 1}, {2, 2, 2})),
          batch_of("b1b", 1.5),
          batch_of("b1b", 1.25),
          batch_of("b11", 2.5)};
}

}  // namespace

TEST_CASE("a replay gives the epoch that was recorded, and of several the next") {
  comp::replay trainer{fake::chain({"a", "b", "c"}), made_up()};
  trainer.set_precision(letters("111"));
  CHECK(trainer.run_epoch().loss == doctest::Approx(2));
  CHECK(trainer.run_epoch().curve == std::vector<double>{3, 2, 1});
  trainer.set_precision(letters("b11"));
  CHECK(trainer.run_epoch().curve == std::vector<double>{3.1, 2.1, 1.1});
  CHECK(trainer.run_epoch().loss == doctest::Approx(1));
  CHECK(trainer.run_epoch().curve == std::vector<double>{3.1, 2.1, 1.1});
  trainer.set_precision(letters("bbb"));
  CHECK(trainer.run_epoch().status == comp::status::out_of_memory);
}

TEST_CASE("an epoch can be cut after any batch, with what it gave so far") {
  comp::replay trainer{fake::chain({"a", "b", "c"}), made_up()};
  trainer.set_precision(letters("b11"));
  std::vector<std::int64_t> seen;
  const sample got = trainer.run_epoch([&](const sample& so_far) {
    seen.push_back(so_far.batches);
    return so_far.batches == 2;
  });
  CHECK(seen == std::vector<std::int64_t>{1, 2});
  CHECK(got.curve == std::vector<double>{3.1, 2.1});
  CHECK(got.loss == doctest::Approx(2.6));
  CHECK(got.seconds == 5);
}

TEST_CASE("batches go by the number of batches trained, so that plans compare on the same ones") {
  comp::replay trainer{fake::chain({"a", "b", "c"}), made_up()};
  const auto start = trainer.save();
  trainer.set_precision(letters("111"));
  CHECK(trainer.run_batch().loss == 3);
  const auto one = trainer.save();
  CHECK(trainer.run_batch().loss == 2);
  trainer.restore(one);
  trainer.set_precision(letters("b11"));
  const sample second = trainer.run_batch();
  CHECK(second.loss == 2.1);
  CHECK(second.seconds == 3);
  CHECK(second.batches == 1);
  CHECK(trainer.run_batch().loss == 1.1);
  SUBCASE("past the record the batches that were timed alone follow") { CHECK(trainer.run_batch().seconds == 2.5); }
  SUBCASE("and without those it begins anew") {
    trainer.set_precision(letters("111"));
    CHECK(trainer.run_batch().loss == 3);
  }
  SUBCASE("a plan that was timed alone gives its batches in turn") {
    trainer.restore(start);
    trainer.set_precision(letters("b1b"));
    CHECK(trainer.run_batch().seconds == 1.5);
    CHECK(trainer.run_batch().seconds == 1.25);
    CHECK(trainer.run_batch().seconds == 1.5);
  }
}

TEST_CASE("a record that ended badly ends badly at the same batch") {
  comp::replay trainer{fake::chain({"a", "b", "c"}), made_up()};
  trainer.set_precision(letters("bb1"));
  CHECK(trainer.run_batch().loss == 3);
  CHECK(trainer.run_batch().ok());
  CHECK(trainer.run_batch().status == comp::status::diverged);
  trainer.restore({});
  trainer.set_precision(letters("bbb"));
  CHECK(trainer.run_batch().status == comp::status::out_of_memory);
}

TEST_CASE("a plan that was not recorded is a failed sample that says so") {
  comp::replay trainer{fake::chain({"a", "b", "c"}), made_up(), "ledger.jsonl"};
  trainer.set_precision(letters("11b"));
  const sample got = trainer.run_epoch();
  CHECK(got.status == comp::status::failed);
  CHECK(got.message ==
        "no epoch of plan 11b is in ledger.jsonl (none of its runs was recorded): search among replay::plans, "
        "or record it");
  CHECK(trainer.run_batch().status == comp::status::failed);
  trainer.set_precision(letters("b1b"));
  CHECK(trainer.run_epoch().message ==
        "no epoch of plan b1b is in ledger.jsonl (another stage of it was recorded): search "
        "among replay::plans, or record it");
}

TEST_CASE("a replay refuses runs of another model, and no runs") {
  CHECK_THROWS_AS(comp::replay(fake::chain({"a", "b"}), made_up()), comp::plan_error);
  CHECK_THROWS_WITH_AS(comp::replay(fake::chain({"a"}), {}),
                       "these runs have no run (there is nothing to replay): record a search first",
                       comp::settings_error);
}

TEST_CASE("the recorded space has the groups that moved together, and what was recorded alone is valid") {
  const auto with = [](const char* p) { return run_of(stage::losses, p, epoch_of({1}, {1})); };
  const comp::replay trainer{fake::chain({"a", "b", "c", "d"}),
                             {with("1111"), with("11bb"), with("0100"), with("01bb")}};
  CHECK(trainer.supported_precisions() ==
        std::vector<comp::precision>{comp::precision::fp32, comp::precision::bf16, comp::precision::fp16});
  const comp::search_space space = comp::recorded_space(trainer);
  REQUIRE(space.groups().size() == 2);
  CHECK(space.groups()[0].operators == std::vector<std::uint32_t>{0});
  CHECK(space.groups()[1].operators == std::vector<std::uint32_t>{2, 3});
  CHECK(space.groups()[1].levels.size() == 3);
  auto run = comp::strategy::exhaustive{}.start(space);
  const auto plans = run.ask(100);
  CHECK(plans.size() == 4);
  CHECK(std::ranges::all_of(plans, [&](const plan& p) { return trainer.has(p); }));
}

TEST_CASE("a search on a replay of a search finds the same plan") {
  fake::world world{.graph = fake::sized_chain({"deny", "loses", "allow", "pays", "deny", "allow.odd"})};
  world.seconds = [graph = world.graph, times = fake::costs{{1, 1, 4, 1, 1, 2}, {0.9, 1.5, 2, 0.5, 0.9, 1}}](
                      const plan& p) { return times(graph, p); };
  world.harm = fake::harmed_by({0});
  world.batches = 64;
  fake::trainer trainer{world};
  const comp::two_stage search{fake::lists{}, comp::strategy::exhaustive{}, comp::strategy::exhaustive{}};
  const comp::outcome found = search.run(trainer);
  REQUIRE(found.plan.count_low() > 0);
  comp::replay again{found.graph, found.trials};
  comp::two_stage on_the_record = search;
  const comp::outcome replayed = on_the_record.run(again);
  CHECK(replayed.plan == found.plan);
  CHECK(replayed.speedup == doctest::Approx(found.speedup).epsilon(0.02));
}
