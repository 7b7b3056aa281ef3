// SPDX-License-Identifier: Apache-2.0
// The whole search on made-up trainers. How each part judges is tested with that part.
#include <doctest/doctest.h>

#include "fake_search.hpp"

using comp::plan;
using comp::stage;
using comp::stages;
using comp::trial;
using fake::search_with;
using fake::settings_with;

TEST_CASE("the outcome says what was found, against what, and why") {
  fake::trainer trainer{fake::typical()};
  const comp::outcome found = search_with(trainer);
  CHECK(found.speedup == doctest::Approx(7 / 4.0));
  CHECK(found.speedup_bounds.low > 1);
  CHECK(found.precisions == std::vector{comp::precision::fp32, comp::precision::bf16});
  CHECK(found.baseline.loss > 0);
  CHECK(found.reasons.size() == 4);
  for (const auto& reason : found.reasons) CHECK_FALSE(reason.text.empty());
  CHECK(found.contest.front().label == "fp32");
  CHECK(found.contest.front().plan.count_low() == 0);
  CHECK(std::ranges::any_of(found.contest, [](const auto& c) { return c.label.starts_with("rule-based bf16"); }));
  CHECK(found.fallbacks.front() == found.plan);
  CHECK(found.fallbacks.back().count_low() == 0);
  CHECK(found.warnings.empty());
}

TEST_CASE("runs are numbered from 0 in order, and what each stage cost adds up") {
  fake::trainer trainer{fake::typical()};
  const comp::outcome found = search_with(trainer);
  std::array<std::size_t, 5> runs{}, batches{};
  for (std::size_t i = 0; i < found.trials.size(); ++i) {
    const trial& t = found.trials[i];
    CHECK(t.number == i);
    ++runs[static_cast<std::size_t>(t.stage)];
    batches[static_cast<std::size_t>(t.stage)] += static_cast<std::size_t>(t.sample.batches);
  }
  for (std::size_t s = 0; s < 5; ++s) {
    CAPTURE(s);
    CHECK(found.costs[s].runs == runs[s]);
    CHECK(found.costs[s].batches == batches[s]);
  }
  CHECK(found.cost(stage::baseline).runs >= 1);
  CHECK(found.baseline.batches >= 16);
}

TEST_CASE("seconds are those of the clock, and what was trained under the found plan is no overhead") {
  fake::trainer trainer{fake::typical()};
  const comp::detail::stopwatch watch;
  const comp::outcome found = search_with(trainer);
  const double took = watch.seconds();
  double all = 0;
  for (const auto& each : found.costs) all += each.seconds;
  CHECK(all <= took);
  CHECK(all > 0.95 * took);
  const double kept = static_cast<double>(found.trained_batches) * found.batch_seconds;
  CHECK(found.overhead_seconds() == doctest::Approx(all - kept));
  CHECK(kept > 0);
  const double hundred = 100 * 10 * found.batch_seconds;
  CHECK(found.overhead_share() == doctest::Approx(found.overhead_seconds() / (found.overhead_seconds() + hundred)));
}

TEST_CASE("FP32 that does not train is an error that says how it ended") {
  fake::world at_once = fake::typical(), later = fake::typical(), throws = fake::typical();
  at_once.loss_offset = fake::nan;
  later.swing = [](std::uint64_t batch) { return batch >= 5 ? fake::nan : 0.0; };
  throws.before_batch = [](auto&&...) { throw std::runtime_error{"data set is empty"}; };
  const std::string judged = " (plans are judged against FP32, which must train): check the data, the learning rate";
  for (const auto& [world, ended] : {std::pair{at_once, std::string{"the loss in FP32 is nan, batch after batch ("}},
                                     {later, "FP32 training ended as not_finite after 9 batches" + judged},
                                     {throws, "data set is empty"}}) {
    fake::trainer trainer{world};
    CHECK_THROWS_WITH((void)search_with(trainer), doctest::Contains(ended.c_str()));
  }
}

TEST_CASE("a model without operators is refused") {
  fake::trainer trainer{fake::world{}};
  CHECK_THROWS_WITH_AS((void)search_with(trainer),
                       "the model has no operators (there is nothing to plan): record a forward first",
                       comp::graph_error);
}

TEST_CASE("when the allow-operators together do not converge they are lowered one kind at a time") {
  fake::world world{.graph = fake::sized_chain({"allow.x", "allow.y", "allow.z"})};
  world.seconds = [](const plan& p) { return 4.0 - static_cast<double>(p.count_low()); };
  world.harm = fake::harmed_by({1});
  fake::trainer trainer{world};
  const comp::outcome found = search_with(trainer);
  CHECK(found.plan.str() == "b1b");
  CHECK(found.warnings.size() >= 1);
  world.precisions.push_back(comp::precision::fp16);  // two low ones, of which one must be chosen
  fake::trainer of_two{world};
  const plan chosen = search_with(of_two).plan;
  CHECK(chosen[1] == comp::precision::fp32);
  CHECK(chosen.count_low() == 2);
}

TEST_CASE("the rule-based plan is the outcome when the search's own is fastest but does not converge") {
  // Stage 2 sees no losses: "relu" between different neighbours is faster low and harms the loss.
  fake::world world{.graph = fake::sized_chain({"allow", "relu", "deny"})};
  world.seconds = [graph = world.graph, times = fake::costs{{4, 4, 1}, {2, 1, 2}}](const plan& p) {
    return times(graph, p);
  };
  world.harm = fake::harmed_by({1});
  fake::trainer trainer{world};
  const comp::outcome found = search_with(trainer);
  CHECK(found.plan.str() == "b11");
  CHECK(found.warnings.size() == 1);
  CHECK(found.warnings.front().find("was fastest and is not taken (") != std::string::npos);
  CHECK(trainer.weights().steps == found.trained_batches);
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, found.trained_batches)));
}

TEST_CASE_FIXTURE(fake::in_typical, "the ablations run one stage alone") {
  fake::trainer trainer{world}, untrained{world};
  const comp::outcome epochs = search_with(trainer, settings_with(stages::losses_only));
  CHECK(epochs.plan.str() == "11bb");  // what no list names stays in FP32
  CHECK(epochs.cost(stage::times).runs == 0);
  // Batches only: fast, without a look at the loss, and may not converge; nothing is trained.
  const comp::outcome batches = search_with(untrained, settings_with(stages::times_only));
  CHECK(batches.plan.str() == "bbbb");
  CHECK(batches.cost(stage::losses).runs == 0);
  world.harm = [](const plan& p) { return comp::is_low(p[0]) ? fake::nan : 0; };
  fake::trainer damaged{world};
  const comp::outcome raced = search_with(damaged, settings_with(stages::times_only));
  CHECK(raced.plan.str() == "1bbb");  // a race drops what damages the weights
  CHECK((batches.trained_batches == 0 && raced.trained_batches == 0));
  CHECK((untrained.weights() == fake::state{} && damaged.weights() == fake::state{}));
}

TEST_CASE("a backend that supports FP32 alone is searched through in FP32's batches, which are kept") {
  fake::world world = fake::typical();
  world.precisions = {comp::precision::fp32};
  fake::trainer trainer{world};
  const comp::outcome found = search_with(trainer);
  CHECK(found.plan.str() == "1111");
  CHECK(found.cost(stage::losses).runs == 0);
  CHECK(trainer.weights().steps == found.trained_batches);
  CHECK(found.trained_batches == 16);
}

TEST_CASE_FIXTURE(fake::in_typical, "whole epochs are judged by the paper's rule where that is asked for") {
  world.batches = 24;
  comp::search_settings settings;
  settings.criterion = comp::criterion::epoch_losses;
  fake::trainer trainer{world};
  const comp::outcome found = search_with(trainer, settings);
  CHECK(found.plan.str() == "1bbb");
  CHECK(found.baseline.batches == 24);
  for (const trial& t : found.trials) {
    if (t.stage == stage::losses && t.accepted) CHECK(t.sample.batches == 24);
  }
  CHECK(found.trained_batches == 24 + 4);  // FP32 checks the state
  CHECK(trainer.weights().steps == 24 + 4);
  CHECK(trainer.count().epochs >= 3);
}

TEST_CASE_FIXTURE(fake::in_typical, "a backend of the four required members is searched in turns, with a warning") {
  world.harm = [](const plan&) { return 0.0; };
  fake::minimal_trainer trainer{world};
  fake::watcher watching;
  const comp::outcome found = comp::two_stage{fake::lists{}}.run(trainer, watching);
  REQUIRE(found.warnings.size() == 1);
  CHECK(watching.warnings == found.warnings);
  CHECK(found.warnings.front().starts_with("the backend cannot save and restore its state"));
  CHECK(found.trained_batches == 0);
  CHECK(found.baseline.batches == 10);
  CHECK(found.speedup > 1);
  CHECK(trainer.now() == found.plan);
}

TEST_CASE("a backend that cannot restore is not damaged by the boldest plan before the rules' was tried") {
  fake::minimal_trainer trainer{fake::typical()};  // a low softmax harms the weights for good
  const comp::outcome found = comp::two_stage{fake::lists{}}.run(trainer);
  CHECK(found.speedup > 1);  // the rule-based plan is harmless and 1.56 times as fast
}

TEST_CASE("settings that cannot be used are refused before anything is run") {
  using settings = comp::search_settings;
  const std::pair<void (*)(settings&), const char*> refused[] = {
      {[](settings& s) { s.tolerance = -1; }, "tolerance is -1"},
      {[](settings& s) { s.race.min_rounds = 5; }, "race has 5 to 10 rounds and 40 in the contest"},
      {[](settings& s) { s.race.hopeless = 1; }, "race lets plans out that are 1 times slower"},
      {[](settings& s) { s.level = 0.5; }, "level is 0.5 (the chance of a wrong answer about a loss)"},
      {[](settings& s) { s.budget = -0.1; }, "budget is -0.1 of a training of 100 epochs"},
      {[](settings& s) { s.planned_epochs = 0; }, "of a training of 0 epochs"},
      {[](settings& s) { s.memory_limit = -1; }, "memory limit of -1 bytes"},
      {[](settings& s) { s.precisions = {comp::precision::fp16}; },
       "precision fp16 was asked for (the backend supports fp32, bf16): leave it out"}};
  for (const auto& [change, problem] : refused) {
    settings changed;
    change(changed);
    fake::trainer trainer{fake::typical()};
    CHECK_THROWS_WITH_AS((void)search_with(trainer, changed), doctest::Contains(problem), comp::settings_error);
    CHECK(trainer.count().batches == 0);
  }
}

TEST_CASE("a policy that fixes an operator at what the backend lacks is refused before anything is run") {
  fake::world world{.graph = fake::chain({"fix", "relu"})};
  world.precisions = {comp::precision::fp32};
  fake::trainer trainer{world};
  CHECK_THROWS_AS((void)search_with(trainer), comp::settings_error);
  CHECK(trainer.count().batches == 0);
}

TEST_CASE("where FP32 does not fit, a refused candidate that lowers less than what takes its place ends no search") {
  fake::world w{.graph = fake::sized_chain({"allow.conv", "relu", "deny.softmax", "relu"})};
  fake::timed_by(w, {{1, 1, 1, 1}, {0.5, 0.5, 0.5, 0.5}, 0});
  w.before_batch = [](const plan& p, std::uint64_t) {
    if (!comp::is_low(p[0]) || !comp::is_low(p[2])) throw comp::out_of_memory{"the device is full"};
    if (p.str() == "bb1b" || p.str() == "bbb1") throw comp::out_of_memory{"the device is full"};
  };
  w.harm = [](const plan& p) { return comp::is_low(p[1]) ? 0.0 : 0.1; };
  fake::trainer trainer{w};
  const comp::outcome found = search_with(trainer);
  CHECK(found.plan.str() == "bbbb");
  CHECK(std::ranges::any_of(
      found.trials, [](const trial& t) { return t.plan.str() == "b1b1" && t.stage == stage::losses && !t.accepted; }));
}
