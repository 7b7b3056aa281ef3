// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/fallbacks.hpp>
#include <comp/search/post_training.hpp>

#include "fake_trainer.hpp"

using comp::category;
using comp::parse_plan;
using comp::post_training;
using comp::status;

namespace {

comp::outcome found(const std::string& plan, const std::vector<std::string>& fallbacks) {
  comp::outcome o;
  o.plan = parse_plan(plan);
  o.baseline.loss = 1;
  for (const auto& p : fallbacks) o.fallbacks.push_back(parse_plan(p));
  return o;
}

fake::trainer three_operators() { return fake::trainer{{.graph = fake::chain({"a", "b", "c"})}}; }

}  // namespace

TEST_CASE("the ladder gives up deny-operators, then all but allow-operators, then everything, no plan twice") {
  const auto ladder = [](const std::string& plan, const std::vector<category>& said) {
    std::vector<comp::decision> decisions;
    for (const auto c : said) decisions.push_back({.category = c});
    std::vector<std::string> rungs;
    for (const auto& p : comp::conservative_ladder(parse_plan(plan), decisions)) rungs.push_back(p.str());
    return rungs;
  };
  using enum category;
  CHECK(ladder("bbb", {allow, deny, follow}) == std::vector<std::string>{"bbb", "b1b", "b11", "111"});
  CHECK(ladder("b1b", {allow, deny, infer}) == std::vector<std::string>{"b1b", "b11", "111"});
  CHECK(ladder("111", {allow, deny, follow}) == std::vector<std::string>{"111"});
}

TEST_CASE("the winner's own epoch is counted as the first") {
  fake::trainer trainer = three_operators();
  auto o = found("bb1", {"bb1", "111"});
  o.first_epoch = comp::sample{.loss = 0.9};
  o.trained_epochs = 1;
  const auto got = post_training{.epochs = 3}.run(trainer, o);
  CHECK(trainer.count().epochs == 2);
  REQUIRE(got.epochs.size() == 3);
  CHECK(got.epochs[0].loss == 0.9);
  CHECK(got.plan.str() == "bb1");
  CHECK(got.fallbacks.empty());
  SUBCASE("not when the trainer's state does not have it") {
    o.trained_epochs = 0;
    fake::trainer again = three_operators();
    CHECK(post_training{.epochs = 3}.run(again, o).epochs.size() == 3);
    CHECK(again.count().epochs == 3);
  }
}

TEST_CASE("a loss that is not finite in epoch 3 puts the last good state back and goes on with the next plan") {
  fake::trainer trainer = three_operators();
  trainer.change().harm = [&](const comp::plan& p) {
    return p.str() == "bb1" && trainer.weights().steps >= 34 ? fake::nan : 0;
  };
  fake::watcher watcher;
  const auto got = post_training{.epochs = 6}.run(trainer, found("bb1", {"bb1", "b11", "111"}), watcher);
  CHECK(got.epochs.size() == 6);
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.fallbacks[0].epoch == 3);
  CHECK(got.fallbacks[0].from.str() == "bb1");
  CHECK(got.fallbacks[0].to.str() == "b11");
  CHECK(got.fallbacks[0].why == status::not_finite);
  CHECK(got.plan.str() == "b11");
  CHECK(trainer.now().str() == "b11");
  CHECK(trainer.weights().steps == 60);  // as if the bad epoch had never been
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 60)));
  CHECK(watcher.done[3].sample.batches ==
        6);  // not trained on to the end: batches 31 to 35, and the one that showed it
}

TEST_CASE("a loss that leaves the road is given up too") {
  fake::trainer trainer = three_operators();
  trainer.change().harm = [&](const comp::plan& p) {
    return p.count_low() > 0 && trainer.weights().steps >= 20 ? 1.0 : 0;
  };
  const auto got = post_training{.epochs = 4, .batches = 2}.run(trainer, found("bb1", {"bb1", "b11", "111"}));
  REQUIRE(got.fallbacks.size() == 2);
  CHECK(got.fallbacks[0].why == status::diverged);
  CHECK(got.fallbacks[1].epoch == 2);
  CHECK(got.plan.str() == "111");
  CHECK(got.epochs.size() == 4);
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 40)));
}

TEST_CASE("a negative loss is on the road while it is near its best") {
  fake::trainer trainer = three_operators();
  trainer.change().loss_offset = -3;
  auto o = found("bb1", {"bb1", "111"});
  o.baseline.loss = -2;
  CHECK(post_training{.epochs = 3}.run(trainer, o).fallbacks.empty());
}

TEST_CASE("a backend that throws costs its plan, not the training") {
  fake::trainer trainer = three_operators();
  trainer.change().before_batch = [](const comp::plan& p, std::uint64_t batch) {
    if (p.str() == "bb1" && batch == 15) throw std::runtime_error{"no kernel"};
  };
  const auto got = post_training{.epochs = 3}.run(trainer, found("bb1", {"bb1", "111"}));
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.fallbacks[0].why == status::failed);
  CHECK(got.fallbacks[0].message == "no kernel");
  CHECK(trainer.weights().steps == 30);
}

TEST_CASE("when even FP32 does not train the error says so and the last good state is kept") {
  fake::trainer trainer = three_operators();
  trainer.change().harm = [&](const comp::plan&) { return trainer.weights().steps >= 25 ? fake::nan : 0; };
  CHECK_THROWS_WITH_AS(
      (void)post_training{.epochs = 5}.run(trainer, found("bb1", {"bb1", "111"})),
      "training in FP32 ended as not_finite in epoch 2 (there is no more conservative plan): check the learning rate "
      "and the data; the trainer is in its last good state",
      comp::error);
  CHECK(trainer.weights().steps == 20);
  SUBCASE("a backend that cannot restore is not said to be in one") {
    fake::minimal_trainer minimal{{.graph = fake::chain({"a", "b", "c"}), .harm = [](auto&&) { return fake::nan; }}};
    CHECK_THROWS_WITH_AS(
        (void)post_training{.epochs = 1}.run(minimal, found("bb1", {"bb1", "111"})),
        "training in FP32 ended as not_finite in epoch 0 (there is no more conservative plan): check the learning rate "
        "and the data",
        comp::error);
  }
}

TEST_CASE("a stop in training keeps the epochs that were finished") {
  fake::trainer trainer = three_operators();
  fake::watcher watcher;
  watcher.stops_now = [&] { return trainer.count().batches >= 25; };
  CHECK_THROWS_AS((void)post_training{.epochs = 5}.run(trainer, found("bb1", {"bb1", "111"}), watcher),
                  comp::interrupted);
  CHECK(trainer.weights().steps == 20);
}

TEST_CASE("a trainer that wants to know is told when training begins and when it ends, however it ends") {
  struct listener : fake::trainer {
    using fake::trainer::run_epoch;
    using fake::trainer::trainer;
    std::string heard = {};
    void post_training(bool on) { heard += on ? "begin " : "end "; }
    comp::sample run_epoch(const comp::stop_predicate& stop) {
      heard += "epoch ";
      return fake::trainer::run_epoch(stop);
    }
  };
  listener trainer{{.graph = fake::chain({"a", "b", "c"})}};
  (void)post_training{.epochs = 2}.run(trainer, found("bb1", {"bb1", "111"}));
  CHECK(trainer.heard == "begin epoch epoch end ");
  trainer.heard.clear();
  trainer.change().harm = [](const comp::plan&) { return fake::nan; };
  CHECK_THROWS_AS((void)post_training{}.run(trainer, found("bb1", {"bb1", "111"})), comp::error);
  CHECK(trainer.heard == "begin epoch epoch end ");
}
