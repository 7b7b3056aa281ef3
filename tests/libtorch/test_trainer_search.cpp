// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <comp/comp.hpp>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;

namespace {

/// A file name of this process, removed at the end.
struct scratch_file {
  std::filesystem::path path;
  explicit scratch_file(const std::string& name)
      : path{std::filesystem::temp_directory_path() / ("comp_libtorch_" + std::to_string(::getpid()) + name)} {
    std::filesystem::remove(path);
  }
  ~scratch_file() { std::filesystem::remove(path); }
  std::string str() const { return path.string(); }
};

comp::two_stage<comp::policy::pytorch, comp::strategy::random, comp::strategy::random> short_search() {
  comp::two_stage search{comp::policy::pytorch{}, comp::strategy::random{.trials = 3},
                         comp::strategy::random{.trials = 3}};
  search.settings.precisions = {precision::bf16};
  search.settings.race = {.min_rounds = 6, .max_rounds = 6, .contest_rounds = 6};
  return search;
}

struct trial_counter {  // models comp::Observer
  std::size_t started = 0;
  void trial_started(const comp::trial& /*t*/) { ++started; }
};

/// A convolutional net whose FP16 step is many times slower on a CPU.
struct convolutions {
  images data = some_images(256, 16);
  torch::nn::Sequential net;
  torch::optim::SGD optimizer;

  convolutions()
      : net{torch::nn::Conv2d{torch::nn::Conv2dOptions{3, 32, 3}.padding(1)},
            torch::nn::ReLU{},
            torch::nn::Conv2d{torch::nn::Conv2dOptions{32, 32, 3}.padding(1)},
            torch::nn::ReLU{},
            torch::nn::MaxPool2d{4},
            torch::nn::Flatten{},
            torch::nn::Linear{32 * 16, 4}},
        optimizer{net->parameters(), torch::optim::SGDOptions{0.02}} {}
  auto make_step() {
    return [this](lt::step& s, const torch::data::Example<>& batch) {
      s.backward(s.forward([&] { return functional::cross_entropy(net->forward(batch.data), batch.target); }));
      s.update(optimizer);
    };
  }
};

}  // namespace

TEST_CASE("a search that stopped goes on from its ledger, and another training's ledger is refused") {
  const scratch_file file{".jsonl"};
  trial_counter first, second;
  comp::outcome whole;
  {
    classification user;
    lt::trainer trainer{user.setup, user.batches, user.make_step(), [&] { return user.accuracy(); }};
    whole = short_search().run(trainer, comp::ledger{file.str()}, first);
    CHECK(whole.baseline.peak_bytes > 0);
    CHECK(whole.plan.size() == trainer.graph().size());
  }
  CHECK(first.started == whole.trials.size());
  {
    classification user;
    lt::trainer trainer{user.setup, user.batches, user.make_step(), [&] { return user.accuracy(); }};
    const auto again = short_search().run(trainer, comp::ledger{file.str()}, second);
    CHECK(again.plan == whole.plan);
    CHECK(again.trials.size() == whole.trials.size());
    CHECK(again.baseline.curve == whole.baseline.curve);
  }
  CHECK(second.started == 0);
  classification other;
  other.optimizer.param_groups()[0].options().set_lr(0.01);
  lt::trainer trainer{other.setup, other.batches, other.make_step(), [&] { return other.accuracy(); }};
  CHECK_THROWS_AS(short_search().run(trainer, comp::ledger{file.str()}), comp::file_error);
}

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
  trainer.restore(start);
  trainer.set_precision(found.plan);
  (void)batches(static_cast<std::int64_t>(found.trained_batches));
  CHECK(batches(3) == next);
  for (const auto& t : found.trials) {
    if (t.stage != comp::stage::epochs || t.repeat >= comp::perturbed_repeats || !t.sample.ok()) continue;
    trainer.restore(start);
    trainer.set_precision(t.plan);
    CHECK(batches(t.sample.batches) == t.sample.curve);
  }
}

TEST_CASE("FP16 on a CPU is cut within a few batches") {
  convolutions user;
  lt::trainer trainer{{.modules = {{"net", user.net}}, .optimizers = {&user.optimizer}},
                      lt::tensor_batches(user.data.x, user.data.y, {.batch = 16}),
                      user.make_step()};
  trainer.set_precision(comp::plan{trainer.graph().size()});
  trainer.run_batch();
  const auto fp32 = trainer.run_epoch();
  REQUIRE(fp32.batches == 16);
  const comp::candidate_cut cut{comp::early_cut{}, fp32, std::numeric_limits<double>::infinity()};
  trainer.set_precision(lowered(trainer.graph(), precision::fp16, "conv2d"));
  const auto got = trainer.run_epoch([&](const comp::sample& so_far) { return cut(so_far) != comp::status::ok; });
  const double slower = comp::median(got.batch_seconds) / comp::median(fp32.batch_seconds);
  MESSAGE("FP16 convolutions take ", slower, " times FP32's batch; cut after ", got.batches, " of ", fp32.batches);
  if (slower > 12) {  // AVX512-FP16 and AMX-FP16 have it fast: then there is nothing to cut
    CHECK(got.status == comp::status::stopped_early);
    CHECK(got.batches <= 4);
  }
}

TEST_CASE("the executor's choices are taken only where they are clearly faster") {
  const comp::op_graph graph{{{.name = "a", .kind = "aten::conv2d"}, {.name = "b", .kind = "aten::linear"}}};
  const comp::plan low{precision::bf16, precision::bf16}, linear_low{precision::fp32, precision::bf16};
  lt::executor_choice now;
  int batches = 0;
  const auto use = [&](const lt::executor_choice& c) { now = c; };
  const auto run = [&](const comp::plan& p, double keep, double last) {
    return lt::measured_choice(graph, p, {}, use, [&] {
      ++batches;
      return 1.0 / ((now.weights == lt::weight_casts::keep ? keep : 1) *
                    (now.images == lt::memory_format::channels_last ? last : 1));
    });
  };
  const auto both = run(low, 1.1, 1.2);
  CHECK(both.choice == lt::executor_choice{lt::weight_casts::keep, lt::memory_format::channels_last});
  CHECK(now == both.choice);
  CHECK(both.keeping.ratio == doctest::Approx(1.1));
  CHECK(both.channels_last.ratio == doctest::Approx(1.2));
  CHECK(batches == 56);
  CHECK(run(low, 0.9, 1.2).choice == lt::executor_choice{lt::weight_casts::cast, lt::memory_format::channels_last});
  CHECK(run(low, 1, 1).choice == lt::executor_choice{});
  batches = 0;
  CHECK(run(linear_low, 1.1, 2).choice == lt::executor_choice{lt::weight_casts::keep, lt::memory_format::as_is});
  CHECK(batches == 28);  // no convolution in low precision: nothing to try
}

TEST_CASE("choices are measured for the first plan of a precision, and for a plan that is trained with") {
  lt::tuning_memory memory{lt::tuning_settings{.shortest_epoch = 100, .trained_with = 500}};
  const comp::plan fp32{precision::fp32, precision::fp32}, one{precision::bf16, precision::fp32},
      two{precision::bf16, precision::bf16}, half{precision::fp16, precision::fp16};
  const lt::executor_choice keep{lt::weight_casts::keep, lt::memory_format::as_is};
  CHECK_FALSE(memory.wants(fp32, 1000, 1000));
  CHECK_FALSE(memory.wants(one, 99, 0));  // it would cost more than it gives
  CHECK(memory.wants(one, 100, 0));
  memory.learn(one, keep);
  CHECK(memory.of(one) == keep);
  CHECK(memory.of(two) == keep);
  CHECK(memory.of(half) == lt::executor_choice{});
  CHECK_FALSE(memory.wants(two, 1000, 499));
  CHECK(memory.wants(two, 1000, 500));
  CHECK(memory.wants(half, 1000, 0));
  memory.learn(two, {});
  CHECK(memory.of(two) == lt::executor_choice{});
  CHECK(memory.of(one) == keep);
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

TEST_CASE("a plan from a file runs in a loop of the user's own as it does in the trainer") {
  const scratch_file file{".json"};
  std::vector<double> expected;
  {
    classification user;
    classification_trainer trainer{user.setup, user.batches, user.make_step()};
    const auto p = lowered(trainer.graph(), precision::bf16, "conv2d");
    comp::save(p, trainer.graph(), trainer.hardware(), file.str());
    torch::manual_seed(5);
    trainer.run_batch();  // in FP32, as the first forward of a planned region
    trainer.set_precision(p);
    expected = trainer.run_epoch().curve;
  }
  classification user;
  lt::planned_region planned{{{"net", user.net}}, file.str()};
  const auto train = [&](const torch::data::Example<>& batch) {
    at::Tensor loss;
    {
      const auto on = planned.enter();
      loss = user.loss(batch);
    }
    loss.backward();
    user.optimizer.step();
    user.optimizer.zero_grad();
    return loss.item<double>();
  };
  torch::manual_seed(5);
  train(*user.batches.next());
  CHECK_FALSE(planned.planned());
  user.batches.begin_epoch();
  std::vector<double> got;
  while (auto batch = user.batches.next()) got.push_back(train(*batch));
  CHECK(got == expected);
  CHECK(planned.planned());
  CHECK(planned.warnings().empty());
  CHECK_FALSE(planned.needs_scaling());

  SUBCASE("another batch size is refused, or taken by name") {
    const auto other = torch::data::Example<>{user.data.x.narrow(0, 0, 5), user.data.y.narrow(0, 0, 5)};
    lt::planned_region exact{{{"net", user.net}}, file.str()};
    {
      const auto on = exact.enter();
      user.loss(other);
    }
    CHECK_THROWS_AS((void)exact.enter(), comp::plan_error);
    lt::planned_region named{{{"net", user.net}}, file.str(), {.match = lt::plan_match::by_name}};
    {
      const auto on = named.enter();
      user.loss(other);
    }
    {
      const auto on = named.enter();
      user.loss(other);
    }
    CHECK(named.planned());
    CHECK(named.executor().current_plan() == planned.executor().current_plan());
    CHECK(named.warnings().empty());
  }
  SUBCASE("inference without gradients, in evaluation mode, by name") {
    user.net->eval();
    const torch::NoGradGuard no_grad;
    lt::planned_region serving{{{"net", user.net}}, file.str(), {.match = lt::plan_match::by_name}};
    at::Tensor fp32, low;
    {
      const auto on = serving.enter();
      fp32 = user.net->forward(user.data.x);
    }
    {
      const auto on = serving.enter();
      low = user.net->forward(user.data.x);
    }
    CHECK_FALSE(torch::equal(fp32, low));
    CHECK(torch::allclose(fp32, low, 0.05, 0.05));
  }
}

TEST_CASE("a planned region waits for all segments, and forgets a first forward that failed") {
  torch::nn::Linear a{2, 2}, b{2, 2};
  const auto x = torch::ones({1, 2});
  lt::planned_region planned{{{"a", a}, {"b", b}},
                             comp::plan{precision::fp32, precision::bf16, precision::fp32, precision::fp16},
                             {.segments = {"one", "two"}}};
  CHECK_THROWS_AS(([&] {
                    const auto on = planned.enter("one");
                    throw std::runtime_error{"in the first forward"};
                  }()),
                  std::runtime_error);
  const auto run = [&] {
    at::Tensor first, second;
    {
      const auto on = planned.enter("one");
      first = a(x);
    }
    {
      const auto on = planned.enter("two");
      second = b(x);
    }
    return std::pair{first.scalar_type(), second.scalar_type()};
  };
  CHECK((run() == std::pair{at::kFloat, at::kFloat}));
  CHECK_FALSE(planned.planned());
  run();
  CHECK(planned.planned());
  CHECK(planned.needs_scaling());
  CHECK((run() == std::pair{at::kBFloat16, at::kHalf}));
}

TEST_CASE("a plan file without operators cannot be taken by name") {
  const scratch_file file{"_alone.json"};
  comp::save(comp::plan{precision::bf16}, file.str());
  torch::nn::Linear a{2, 2};
  lt::planned_region planned{{{"a", a}}, file.str(), {.match = lt::plan_match::by_name}};
  {
    const auto on = planned.enter();
    a(torch::ones({1, 2}));
  }
  CHECK_THROWS_AS((void)planned.enter(), comp::file_error);
}
