// SPDX-License-Identifier: Apache-2.0
// Trainings whose plan does harm after the search: to which operators it is attributed, what is kept, what it costs.
#include <doctest/doctest.h>

#include <comp/search/post_training.hpp>
#include <comp/search/training/plan_changes.hpp>

#include "fake_trainer.hpp"

using comp::parse_plan;
using comp::post_training;
using comp::status;

namespace {

/// Eight operators; each is twice as fast low. Epochs of 100 batches.
fake::trainer eight_operators() {
  fake::trainer trainer{{.graph = fake::chain({"a", "b", "c", "d", "e", "f", "g", "h"})}};
  trainer.change().batches = 100;
  trainer.change().seconds = [](const comp::plan& p) { return 2.0 - 0.125 * static_cast<double>(p.count_low()); };
  return trainer;
}

comp::outcome eight_low(const std::string& trusted = "bb1111bb") {
  comp::outcome o;
  o.graph = fake::chain({"a", "b", "c", "d", "e", "f", "g", "h"});
  o.plan = parse_plan("bbbbbbbb");
  o.baseline.loss = 1;
  o.batches_per_epoch = 100;
  o.fallbacks = {o.plan, parse_plan(trusted), parse_plan("11111111")};
  return o;
}

}  // namespace

TEST_CASE("an operator that makes the loss rise late is found, and the others stay low") {
  for (const std::size_t bad : {0U, 3U, 7U}) {
    CAPTURE(bad);
    fake::trainer trainer = eight_operators();
    trainer.change().harm = [&](const comp::plan& p) {
      return comp::is_low(p[bad]) && trainer.weights().steps >= 300 ? 1.0 : 0;
    };
    const auto got = post_training{.epochs = 30}.run(trainer, eight_low());
    std::string expected = "bbbbbbbb";
    expected[bad] = '1';
    CHECK(got.plan.str() == expected);
    CHECK(trainer.now().str() == expected);
    REQUIRE(got.fallbacks.size() == 1);
    CHECK(got.fallbacks[0].epoch == 3);
    CHECK(got.fallbacks[0].why == status::diverged);
    CHECK(got.fallbacks[0].message.starts_with("its loss rose above its recent level, and FP32's did not; "));
    CHECK(got.fallbacks[0].message.ends_with(" runs of its parts find the harm in " + std::to_string(bad) + " (" +
                                             static_cast<char>('a' + bad) + ")"));
    CHECK(got.epochs.size() == 30);
    CHECK(trainer.weights().steps == 3000);
    CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 3000)));
  }
}

TEST_CASE("two operators whose loss is not finite are both found") {
  fake::trainer trainer = eight_operators();
  trainer.change().harm = [&](const comp::plan& p) {
    return (comp::is_low(p[1]) || comp::is_low(p[6])) && trainer.weights().steps >= 250 ? fake::nan : 0;
  };
  const auto got = post_training{.epochs = 30}.run(trainer, eight_low());
  CHECK(got.plan.str() == "b1bbbb1b");
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.fallbacks[0].why == status::not_finite);
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 3000)));
}

TEST_CASE("where finding the operator costs more than it saves, the next fallback takes over") {
  fake::trainer trainer = eight_operators();
  trainer.change().harm = [&](const comp::plan& p) {
    return comp::is_low(p[3]) && trainer.weights().steps >= 300 ? 1.0 : 0;
  };
  const auto got = post_training{.epochs = 4}.run(trainer, eight_low());
  CHECK(got.plan.str() == "bb1111bb");
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 400)));
}

TEST_CASE("harm that grows slowly is seen beside FP32, whose training takes the plan's place from where they parted") {
  fake::trainer trainer = eight_operators();
  trainer.change().harm = fake::harmed_by({5}, 5e-4);
  fake::training_keeper keeper{.trainer = &trainer};
  const post_training settings{.epochs = 30};
  const auto got = settings.run(trainer, eight_low(), keeper);
  CHECK(got.plan.str() == "bbbbb1bb");
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.fallbacks[0].epoch == 0);
  CHECK(got.fallbacks[0].message.starts_with("slow harm: in "));
  CHECK(got.fallbacks[0].message.ends_with(" runs of its parts find the harm in 5 (f)"));
  CHECK(got.epochs.size() == 30);
  CHECK(trainer.weights().steps == 3000);
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 3000)));  // as if nothing had ever harmed
  for (std::size_t i = 0; i < keeper.progress.size(); ++i) {
    CAPTURE(i);
    fake::trainer again = eight_operators();
    again.change().harm = trainer.change().harm;
    again.restore(keeper.states[i]);
    const auto same = settings.go_on(again, keeper.progress[i]);
    CHECK(same.plan == got.plan);
    CHECK(same.epochs.size() == 30);
    if (!keeper.progress[i].so_far.fallbacks.empty()) CHECK(again.weights() == trainer.weights());
  }
}

TEST_CASE("a harmless plan costs few batches of FP32, a short training fewer, a guard without evidence none") {
  const auto batches_of = [](const post_training& settings) {
    fake::trainer trainer = eight_operators();
    CHECK(settings.run(trainer, eight_low()).fallbacks.empty());
    return trainer.count().batches;
  };
  const auto checks = [](std::uint64_t count) { return 4 * count; };  // of the state: each 2000 batches, and at the end
  CHECK(batches_of({.epochs = 30}) == 3000 + 8 + checks(2));
  CHECK(batches_of({.epochs = 7}) == 700 + checks(1));
  CHECK(batches_of({.epochs = 30, .guard = {.evidence = 0}}) == 3000);
}

TEST_CASE("a difference that does not repeat rejects no plan") {
  fake::trainer trainer = eight_operators();
  const fake::trainer* machine = &trainer;
  trainer.change().harm =
      [machine](const comp::plan& p) {  // of the first batches that the machine runs, whoever trains
        return p.count_low() > 0 && machine->count().batches < 100 ? 5e-4 : 0;
      };
  const auto got = post_training{.epochs = 30}.run(trainer, eight_low());
  CHECK(got.fallbacks.empty());
  CHECK(got.plan == parse_plan("bbbbbbbb"));
  CHECK(trainer.weights().steps == 3000);
}

TEST_CASE("a bisected plan takes the place of the one that was given up, and what is more conservative lowers less") {
  std::vector<comp::plan> of_training{parse_plan("bbbb"), parse_plan("bb11"), parse_plan("b111"), parse_plan("1111")};
  std::size_t current = 0;
  comp::detail::fallback_plans plans{of_training, current};
  const comp::plan bisected = parse_plan("1bbb");
  plans.give_up(&bisected);
  std::vector<std::string> all;
  for (const comp::plan& p : of_training) all.push_back(p.str());
  CHECK(all == std::vector<std::string>{"bbbb", "1bbb", "1b11", "1111"});
  CHECK(plans.current() == bisected);
  plans.give_up(nullptr);
  CHECK(plans.current().str() == "1b11");
  CHECK_FALSE(plans.is_most_conservative());
  const comp::plan fp32 = plans.fp32();
  plans.give_up(&fp32);
  CHECK(plans.is_most_conservative());
  CHECK(current + 1 == of_training.size());
}

TEST_CASE("a lost batch is left out and told of once, under a plan and in FP32") {
  for (const std::string plan : {"bbbbbbbb", "11111111"}) {
    CAPTURE(plan);
    fake::trainer trainer = eight_operators();
    trainer.change().swing = [](std::uint64_t step) {
      return step == 250 || step == 251 || step == 470 ? fake::nan : 0;
    };
    comp::outcome o = eight_low();
    o.plan = parse_plan(plan);
    o.fallbacks = {o.plan, parse_plan("11111111")};
    if (plan[0] == '1') o.fallbacks.pop_back();
    const auto got = post_training{.epochs = 8, .guard = {.evidence = 0}}.run(trainer, o);
    CHECK(got.fallbacks.empty());
    CHECK(got.compared == 0);
    REQUIRE(got.epochs.size() == 8);
    CHECK(got.epochs[2].not_finite == 2);
    CHECK(std::isfinite(got.epochs[2].loss));
    REQUIRE(got.warnings.size() == 1);
    CHECK(got.warnings[0].starts_with("the loss of 2 of the 100 batches of epoch 2 is not finite ("));
    CHECK(trainer.count().batches == 800);
  }
}

TEST_CASE("a plan that loses batches which FP32 does not is bisected, one that loses the same is not") {
  fake::trainer trainer = eight_operators();
  bool loses = false;
  trainer.change().before_batch = [&](const comp::plan& p, std::uint64_t) { loses = comp::is_low(p[4]); };
  trainer.change().swing = [&](std::uint64_t step) { return loses && step > 300 && step % 20 == 0 ? fake::nan : 0; };
  SUBCASE("the plan alone") {
    const auto got = post_training{.epochs = 30}.run(trainer, eight_low());
    CHECK(got.plan.str() == "bbbb1bbb");
    REQUIRE(got.fallbacks.size() == 1);
    CHECK(got.fallbacks[0].why == status::not_finite);
    CHECK(got.fallbacks[0].message.starts_with(
        "it lost 4 of 100 batches, whose loss was not finite, and FP32 clearly fewer; "));
  }
  SUBCASE("both") {
    trainer.change().before_batch = [&](const comp::plan&, std::uint64_t) { loses = true; };
    const auto got = post_training{.epochs = 30}.run(trainer, eight_low());
    CHECK(got.fallbacks.empty());
    CHECK(got.compared <= 3);  // and ever less often
  }
}
