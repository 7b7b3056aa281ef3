// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <comp/comp.hpp>
#include <comp/strategy/genetic.hpp>
#include <comp_libtorch/plan/plan_tuner.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;

namespace {

comp::two_stage<comp::policy::pytorch, comp::strategy::genetic, comp::strategy::genetic> short_search() {
  comp::two_stage search{comp::policy::pytorch{}, comp::strategy::genetic{.trials = 3},
                         comp::strategy::genetic{.trials = 3}};
  search.settings.precisions = {precision::bf16};
  search.settings.race = {.min_rounds = 6, .max_rounds = 6, .contest_rounds = 6};
  return search;
}

}  // namespace

TEST_CASE("candidates start from the same state, and the search leaves the winner's") {
  classification user;
  classification_trainer trainer{user.setup, user.batches, user.make_step()};
  const auto start = trainer.save();
  const auto found = short_search().run(trainer);
  const auto batches = [&](std::int64_t count) {
    std::vector<double> curve;
    for (std::int64_t i = 0; i < count; ++i) curve.push_back(trainer.run_batch().loss);
    return curve;
  };
  const auto next = batches(3);
  const comp::trial& last = found.trials.back();
  const std::int64_t in_fp32 = last.purpose == comp::purpose::check ? last.sample.batches : 0;  // kept as training
  trainer.restore(start);
  trainer.set_precision(found.plan);
  (void)batches(static_cast<std::int64_t>(found.trained_batches) - in_fp32);
  trainer.set_precision(comp::plan{found.plan.size()});
  (void)batches(in_fp32);
  trainer.set_precision(found.plan);
  CHECK(batches(3) == next);
  for (const auto& t : found.trials) {
    if (t.stage != comp::stage::losses || t.purpose != comp::purpose::judge || !t.sample.ok()) continue;
    trainer.restore(start);
    trainer.set_precision(t.plan);
    CHECK(batches(t.sample.batches) == t.sample.curve);
  }
}

TEST_CASE("the executor's choices are taken only where they are clearly faster") {
  const lt::executor_options low{.weights = true, .images = true}, linear_low{.weights = true};
  lt::executor_choice now;
  int batches = 0;
  const auto use = [&](const lt::executor_choice& c) { now = c; };
  const auto run = [&](const lt::executor_options& open, double keep, double last) {
    return lt::measured_choice({open, {}}, use, [&](bool /*by_operator*/) {
      ++batches;
      return lt::step_times{1.0 / ((now.weights == lt::weight_casts::keep ? keep : 1) *
                                   (now.images == lt::memory_format::channels_last ? last : 1))};
    });
  };
  const auto both = run(low, 1.1, 1.2);
  CHECK(both.choice == lt::executor_choice{lt::weight_casts::keep, lt::memory_format::channels_last});
  CHECK(now == both.choice);
  CHECK(both.keeping.ratio == doctest::Approx(1.1));
  CHECK(both.channels_last.ratio == doctest::Approx(1.2));
  CHECK(batches == 56);
  CHECK(run(low, 0.9, 1.2).choice == lt::executor_choice{lt::weight_casts::cast, lt::memory_format::channels_last});
  batches = 0;
  CHECK(run(low, 1, 1).choice == lt::executor_choice{});  // clear: it makes no difference
  CHECK(batches == 56);
  batches = 0;
  CHECK(run(linear_low, 1.1, 2).choice == lt::executor_choice{lt::weight_casts::keep, lt::memory_format::as_is});
  CHECK(batches == 28);
}

TEST_CASE("a loaded machine is measured longer, up to a limit, and what stays unclear stays as it was") {
  std::mt19937 random{7};
  lt::executor_choice now;
  int batches = 0;
  const auto run = [&](double gain, double noise, lt::tuning_settings settings) {
    batches = 0;
    return lt::measured_choice(
        {{.weights = true}, settings}, [&](const lt::executor_choice& c) { now = c; },
        [&](bool /*by_operator*/) {
          ++batches;
          const double others = std::exponential_distribution{1 / noise}(random);
          return lt::step_times{1.0 / (now.weights == lt::weight_casts::keep ? gain : 1) + others};
        });
  };
  int found = 0, wrong = 0, longest = 0;
  for (int i = 0; i < 100; ++i) {
    found += run(1.15, 0.1, {.most_seconds = 1e6}).choice.weights == lt::weight_casts::keep;
    longest = std::max(longest, batches);
    wrong += run(1, 0.1, {.most_seconds = 1e6}).choice.weights == lt::weight_casts::keep;
  }
  CHECK(longest == 4 * 28);
  CHECK(found > 80);
  CHECK(wrong < 10);
  int at_once = 0;
  for (int i = 0; i < 100; ++i) at_once += run(1.15, 0.1, {.most_rounds = 7}).choice.weights == lt::weight_casts::keep;
  CHECK(at_once < found - 20);
  run(1, 0.1, {.most_seconds = 20});
  CHECK(batches <= 4 * 8);
}

TEST_CASE("choices come back from a plan file as they were, and not where they do not apply") {
  const comp::hardware here{.name = "this", .kind = comp::device_kind::cpu}, there{.name = "another"};
  const lt::tuned_choice tuned{
      {lt::weight_casts::cast, lt::memory_format::channels_last}, {0.9, {0.85, 0.95}}, {1.25, {1.2, 1.3}}};
  comp::loaded_plan file{.plan = {}, .made_for = here, .execution = execution_of(tuned)};
  REQUIRE(file.execution.size() == 2);
  CHECK(file.execution[0].value == "cast");
  CHECK(file.execution[0].gain.ratio == doctest::Approx(1 / 0.9));
  CHECK(file.execution[1].value == "channels_last");
  CHECK(file.execution[1].gain.bounds.low == 1.2);
  lt::tuned_choice back;
  CHECK(apply(file, here, back).empty());
  CHECK(back.choice == tuned.choice);
  CHECK(back.keeping.ratio == doctest::Approx(0.9));
  CHECK(back.channels_last.ratio == 1.25);
  lt::tuned_choice other;
  REQUIRE(apply(file, there, other).size() == 1);
  CHECK(other.choice == lt::executor_choice{});
  file.execution[1].value = "sideways";
  file.execution.push_back({"later", "x", {}});
  const auto unknown = apply(file, here, other);
  REQUIRE(unknown.size() == 2);
  CHECK(unknown[0] ==
        "the plan was run with \"images\" = \"sideways\" (this version of comp has no such choice): the "
        "default is used");
  CHECK(other.choice == lt::executor_choice{});
}

TEST_CASE("a search's plan file has the winner's choices, and a trainer takes them from it without measuring") {
  const scratch_file file;
  classification user;
  user.setup.choices = lt::executor_choices::measured;
  classification_trainer trainer{user.setup, user.batches, user.make_step()};
  const comp::plan low = lowered(trainer.graph(), precision::bf16);
  CHECK(trainer.execution().empty());
  trainer.set_precision(low);
  CHECK(trainer.execution().empty());  // nothing was measured
  (void)trainer.tune();
  REQUIRE(trainer.execution().size() >= 2);  // and comp's kernels that are faster here
  comp::outcome best{.plan = low, .execution = trainer.execution(), .graph = trainer.graph()};
  best.hardware = trainer.hardware();
  best.execution[1] = {"images", "channels_last", {1.5, {1.4, 1.6}}};
  comp::save(best, file.str());

  classification again;
  again.setup.choices = lt::executor_choices::measured;
  classification_trainer other{again.setup, again.batches, again.make_step()};
  CHECK(other.set_precision(comp::load_plan(file.str(), other.graph())).empty());
  CHECK(other.executor().settings().images == lt::memory_format::channels_last);
  CHECK(other.execution()[1].gain.ratio == 1.5);
  (void)other.run_epoch();
  CHECK(other.execution()[1].gain.ratio == 1.5);
  comp::loaded_plan elsewhere = comp::load_plan(file.str(), other.graph());
  elsewhere.made_for.name = "another machine";
  classification third;
  classification_trainer last{third.setup, third.batches, third.make_step()};
  (void)last.graph();
  CHECK(last.set_precision(elsewhere).size() == 1);
  CHECK(last.executor().settings().images == lt::memory_format::as_is);
}

TEST_CASE("choices are measured for the first plan of a precision, and for a plan that is trained with") {
  lt::program p;
  const at::Tensor x = at::ones({2, 2});
  recorded(p, [&] { at::mm(at::mm(x, x), x); });
  REQUIRE(p.graph().size() == 2);
  lt::plan_tuner tuner{p, lt::executor_choices::measured, {.shortest_epoch = 100, .trained_with = 500}};
  const comp::plan fp32{precision::fp32, precision::fp32}, one{precision::bf16, precision::fp32},
      two{precision::bf16, precision::bf16}, half{precision::fp16, precision::fp16};
  const lt::executor_choice keep{lt::weight_casts::keep, lt::memory_format::as_is};
  const auto wants = [&](const comp::plan& next) {
    tuner.set_plan(next);
    return tuner.needs_measuring();
  };
  const auto run = [](std::int64_t batches) { return comp::sample{.batches = batches, .batch_seconds = {1.0}}; };
  tuner.set_plan(fp32);
  tuner.trained_epoch(run(99));
  CHECK_FALSE(wants(one));  // it would cost more than it gives
  tuner.set_plan(fp32);
  SUBCASE("told by an epoch") { tuner.trained_epoch(run(1000)); }
  SUBCASE("told by the trainer, before an epoch is over") {
    tuner.expect_epochs_of(1000);
    tuner.expect_epochs_of(0);
  }
  CHECK_FALSE(tuner.needs_measuring());
  CHECK(wants(one));
  tuner.learn(one, {.choice = keep});
  CHECK_FALSE(tuner.needs_measuring());
  CHECK(tuner.find(one)->choice == keep);
  CHECK(tuner.find(two)->choice == keep);
  CHECK(tuner.find(half) == nullptr);
  CHECK_FALSE(wants(two));
  CHECK(p.settings().weights == lt::weight_casts::keep);
  tuner.trained(run(499));
  CHECK_FALSE(tuner.needs_measuring());
  tuner.trained(run(1));
  CHECK(tuner.needs_measuring());
  tuner.learn(two, {});
  CHECK(tuner.find(two)->choice == lt::executor_choice{});
  CHECK(tuner.find(one)->choice == keep);
  tuner.set_plan(one);
  tuner.trained(run(1));
  CHECK(tuner.find(one)->choice == keep);
  CHECK_FALSE(lt::plan_tuner{p, lt::executor_choices::fixed}.needs_measuring());
}

TEST_CASE("in short epochs a search measures quickly, where that takes at most two of them") {
  lt::program p;
  const at::Tensor images = at::ones({1, 3, 8, 8}), weight = at::ones({4, 3, 3, 3});
  recorded(p, [&] { at::mul(at::conv2d(images, weight), 2); });
  comp::plan scaled(p.graph().size()), both = scaled;
  for (std::size_t i = 0; i < p.graph().size(); ++i) {
    both[i] = precision::bf16;
    if (p.graph()[i].kind.find("mul") != std::string::npos) scaled[i] = precision::bf16;
  }
  p.set_plan(both);
  const std::int64_t steps = 24 + (p.options_of(both).kernels.empty() ? 0 : 1 + 6 * 3);
  lt::plan_tuner tuner{p, lt::executor_choices::measured};
  tuner.expect_epochs_of((steps + 1) / 2 - 1);
  CHECK_FALSE(tuner.needs_measuring());
  tuner.expect_epochs_of((steps + 1) / 2);
  tuner.set_plan(scaled);
  CHECK_FALSE(tuner.needs_measuring());  // it has nothing to choose
  tuner.set_plan(both);
  REQUIRE(tuner.needs_measuring());
  std::int64_t batches = 0;
  tuner.measure_unless_hopeless([&] {
    ++batches;
    const at::NoGradGuard no_grad;
    const auto on = p.enter();
    at::mul(at::conv2d(images, weight), 2);
    return 1.0;
  });
  CHECK(batches == steps);
  CHECK_FALSE(tuner.needs_measuring());
  tuner.trained({.batches = 500});
  CHECK(tuner.needs_measuring());  // thoroughly
}

TEST_CASE("a plan that is far slower than FP32 is not measured") {
  lt::program p;
  const at::Tensor x = at::ones({2, 2});
  recorded(p, [&] { at::mm(x, x); });
  for (const auto& [seconds, expected] : {std::pair{7.0, 1}, {2.0, 2}, {1.0, 29}}) {
    CAPTURE(seconds);
    lt::plan_tuner tuner{p, lt::executor_choices::measured};
    tuner.set_plan(comp::plan{precision::fp32});
    tuner.trained_epoch({.batches = 1000, .batch_seconds = {1.0}});
    tuner.set_plan(comp::plan{precision::fp16});
    REQUIRE(tuner.needs_measuring());
    int batches = 0;
    tuner.measure_unless_hopeless([&, each = seconds] {
      ++batches;
      return each;
    });
    CHECK(batches == expected);  // 7 rounds of 4 after the first, if it is worth it
    CHECK_FALSE(tuner.needs_measuring());
  }
}

TEST_CASE("measuring how a plan is best run leaves the training as it was") {
  classification user;
  user.setup.choices = lt::executor_choices::measured;
  classification_trainer trainer{user.setup, user.batches, user.make_step()};
  trainer.set_precision(lowered(trainer.graph(), precision::bf16));
  const auto before = trainer.save();
  const auto tuned = trainer.tune();
  CHECK(tuned.keeping.ratio > 0);
  CHECK(tuned.channels_last.ratio > 0);
  CHECK(trainer.executor().settings().weights == tuned.choice.weights);
  CHECK(trainer.executor().settings().images == tuned.choice.images);
  const auto rest = trainer.run_epoch().curve;
  trainer.restore(before);
  CHECK(trainer.run_epoch().curve == rest);
}

TEST_CASE("FP32 is tuned as a plan of its own, whose losses differ from FP32's by roundings at most") {
  const scratch_file file;
  classification user, plain;
  user.setup.choices = lt::executor_choices::measured;
  classification_trainer trainer{user.setup, user.batches, user.make_step()},
      reference{plain.setup, plain.batches, plain.make_step()};
  CHECK_FALSE(reference.tuned_fp32().is_tuned());  // its choices are fixed
  CHECK_FALSE(trainer.tuned_fp32().is_tuned());    // epochs of four batches are too short to measure
  if (!device.is_cpu()) return;
  const comp::plan tuned = comp::plan{trainer.graph().size()}.as_tuned();
  const auto before = trainer.save();
  trainer.set_precision(tuned);
  (void)trainer.tune();
  REQUIRE(trainer.execution().size() >= 2);
  trainer.set_precision(comp::plan{tuned.size()});
  CHECK(trainer.execution().empty());
  torch::manual_seed(5);
  const auto want = reference.run_epoch().curve;
  torch::manual_seed(5);
  CHECK(trainer.run_epoch().curve == want);  // FP32 itself stays the plain loop's

  comp::outcome best{.plan = tuned, .execution = {{"images", "channels_last", {1.5, {1.4, 1.6}}}}};
  best.graph = trainer.graph();
  best.hardware = trainer.hardware();
  comp::save(best, file.str());
  const comp::loaded_plan loaded = comp::load_plan(file.str(), trainer.graph());
  CHECK(loaded.plan == tuned);
  trainer.restore(before);
  CHECK(trainer.set_precision(loaded).empty());
  torch::manual_seed(5);
  const auto losses = trainer.run_epoch().curve;
  REQUIRE(losses.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(losses[i] == doctest::Approx(want[i]).epsilon(1e-4));

  for (const auto match : {lt::plan_match::exact, lt::plan_match::by_name}) {
    lt::planned_region planned{{{"net", plain.net}}, file.str(), {.match = match}};
    const auto batch = *plain.batches.next();
    at::Tensor convolved;
    for (int i = 0; i < 2; ++i) {
      const auto on = planned.enter();
      at::Tensor y = convolved = plain.net->begin()->forward(batch.data);
      for (auto layer = plain.net->begin() + 1; layer != plain.net->end(); ++layer) y = layer->forward(y);
      (void)functional::cross_entropy(y, batch.target);
    }
    CHECK(planned.executor().current_plan() == tuned);
    CHECK(planned.execution().at(1).value == "channels_last");
    CHECK(convolved.is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(planned.warnings().empty());
  }
  comp::save(tuned, trainer.graph(), trainer.hardware(), file.str());
  lt::planned_region bare{{{"net", plain.net}}, file.str()};
  for (int i = 0; i < 2; ++i) inside(bare, [&] { (void)plain.loss(*plain.batches.next()); });
  REQUIRE_FALSE(bare.warnings().empty());
  CHECK(bare.warnings().back().ends_with("says nothing that can be used here of how it is run: it runs as plain FP32"));
}

TEST_CASE("a trainer has tuned FP32 where a choice was measured to be faster, and is as before") {
  if (!device.is_cpu()) return;
  for (const double last : {1.0, 3.0}) {  // a step's seconds channels-last, else 2
    classification user;
    user.setup.choices = lt::executor_choices::measured;
    user.batches = lt::tensor_batches(user.data.x, user.data.y, {.batch = 2, .seed = 2});
    classification_trainer* instance = nullptr;
    user.setup.agree = [&](std::vector<double> numbers) {
      const bool counts = numbers.empty() || numbers[0] <= 0 || numbers[0] == std::floor(numbers[0]);
      if (counts || instance == nullptr) return numbers;
      const auto& now = instance->executor().settings();
      for (double& each : numbers) each = now.images == lt::memory_format::channels_last ? last : 2;
      return numbers;
    };
    classification_trainer trainer{user.setup, user.batches, user.make_step()};
    instance = &trainer;
    const comp::plan fp32{trainer.graph().size()};
    CHECK(trainer.tuned_fp32() == (last < 2 ? fp32.as_tuned() : fp32));
    CHECK(trainer.executor().current_plan() == fp32);
    trainer.set_precision(fp32);
    classification plain;
    plain.batches = lt::tensor_batches(plain.data.x, plain.data.y, {.batch = 2, .seed = 2});
    classification_trainer reference{plain.setup, plain.batches, plain.make_step()};
    torch::manual_seed(5);
    const auto want = reference.run_epoch().curve;
    torch::manual_seed(5);
    CHECK(trainer.run_epoch().curve == want);
    if (last > 2) continue;
    trainer.set_precision(fp32.as_tuned());
    CHECK(trainer.execution().at(1).value == "channels_last");
  }
}

TEST_CASE("what breaks a step by comp's kernels or channels-last images is left out; what else breaks it is thrown") {
  if (!device.is_cpu()) return;
  classification user;
  user.setup.choices = lt::executor_choices::measured;
  user.batches = lt::tensor_batches(user.data.x, user.data.y, {.batch = 2, .seed = 2});
  classification_trainer* instance = nullptr;
  std::function<bool(const lt::program_settings&)> breaks = [](const auto&) { return false; };
  int broken = 0;
  classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   user.make_step()(s, batch);
                                   if (instance == nullptr || !breaks(instance->executor().settings())) return;
                                   ++broken;
                                   TORCH_CHECK(false, "view size is not compatible");
                                 }};
  instance = &trainer;
  const comp::plan fp32{trainer.graph().size()};
  SUBCASE("images") {
    breaks = [](const auto& settings) { return settings.images == lt::memory_format::channels_last; };
    CHECK(trainer.tuned_fp32() == fp32);
    CHECK(broken == 2);  // by the kernels, as it seems, then by the images
  }
  SUBCASE("kernels") {
    breaks = [](const auto& settings) { return !settings.kernels.empty(); };
    CHECK_NOTHROW(trainer.tuned_fp32());
    CHECK(broken == 1);
  }
  SUBCASE("neither") {
    breaks = [](const auto&) { return true; };
    trainer.set_precision(fp32.as_tuned());
    CHECK_THROWS_WITH_AS(trainer.tune(), "view size is not compatible", comp::error);
    CHECK(broken == 3);
    breaks = [&](const auto& settings) { return broken < 4 && !settings.kernels.empty(); };
    CHECK_NOTHROW(trainer.tune());
    CHECK(broken == 4);  // kernels were tried again
  }
}
