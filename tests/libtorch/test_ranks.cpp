// SPDX-License-Identifier: Apache-2.0
// A trainer that is one of several ranks makes the choices that the slowest rank's times make. The other ranks are made
// up here; real ones are in tests/python/test_ranks.py.

#include <chrono>
#include <comp_libtorch/plan/plan_tuner.hpp>
#include <thread>

#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;

namespace {

/// A training on one of several ranks, whose times the test makes up once there is a trainer.
struct on_a_rank {
  classification user;
  std::function<double(const lt::program_settings&)> slowest = {};  // seconds of a batch on the slowest rank
  std::vector<std::vector<double>> given = {};
  std::size_t met = 0;    // before a backward
  bool gives_up = false;  // another rank, in its forward
  std::unique_ptr<classification_trainer> trainer;

  explicit on_a_rank(double other_machine = 0) {
    user.setup.choices = lt::executor_choices::measured;
    user.setup.agree = [this, other_machine](std::vector<double> own) {
      if (own.empty()) {
        ++met;
        if (gives_up) throw comp::error{"another rank failed"};
        return own;
      }
      given.push_back(own);
      if (trainer == nullptr) own[0] += other_machine;
      if (slowest && own.size() == 1 + 2 * operators()) {
        own.assign(own.size(), 1e-3);
        own[0] = slowest(trainer->executor().settings());
      } else if (slowest && own[0] > 0) {
        own[0] = slowest(trainer->executor().settings());
      }
      return own;
    };
    trainer = std::make_unique<classification_trainer>(user.setup, user.batches, user.make_step());
  }
  std::size_t operators() { return trainer->executor().graph().size(); }
};

}  // namespace

TEST_CASE("a plan is run as is best on the slowest rank, whatever the times are here") {
  for (const bool keeping_pays : {false, true}) {
    CAPTURE(keeping_pays);
    on_a_rank rank;
    rank.trainer->set_precision(lowered(rank.trainer->graph(), precision::bf16));
    rank.slowest = [&](const lt::program_settings& now) {
      return (now.weights == lt::weight_casts::keep) == keeping_pays ? 1.0 : 2.0;
    };
    const auto tuned = rank.trainer->tune();
    CHECK((tuned.choice.weights == lt::weight_casts::keep) == keeping_pays);
    CHECK(tuned.keeping.ratio == (keeping_pays ? 2 : 0.5));
    CHECK(tuned.choice.kernels.empty());  // all operators take the slowest rank's millisecond with each
  }
}

TEST_CASE("ranks on different machines have other kernels to choose from, and choose none") {
  on_a_rank rank{1e9};
  rank.trainer->set_precision(lowered(rank.trainer->graph(), precision::bf16));
  const std::size_t before = rank.given.size();
  CHECK(rank.trainer->batches_per_epoch() == 4);
  (void)rank.trainer->run_epoch();
  CHECK(rank.given.size() == before + 1);  // for the length of an epoch
  CHECK(rank.trainer->execution().at(0).value == "cast");
}

TEST_CASE("whether a plan is too slow to be measured is the slowest rank's to say") {
  for (const double low : {3.0, 1.0}) {  // [s]; FP32 takes one
    CAPTURE(low);
    on_a_rank rank;
    lt::program& program = rank.trainer->executor();
    const comp::plan plan = lowered(rank.trainer->graph(), precision::bf16);
    lt::plan_tuner tuner{
        program, lt::executor_choices::measured, {.shortest_epoch = 1}, [low](std::vector<double> own) {
          own[0] = own[0] > 1 ? 1.5 : low;  // the limit, or a batch
          return own;
        }};
    tuner.set_plan(comp::plan{plan.size()});
    tuner.trained_epoch({.loss = 1, .batches = 4, .batch_seconds = {100}});
    tuner.set_plan(plan);
    std::size_t trained = 0;
    (void)tuner.measure_unless_hopeless([&] {
      ++trained;
      return 1e-9;  // here it is quick
    });
    CHECK((trained == 2) == (low > 1.5));  // two batches tell; measuring takes more
  }
}

TEST_CASE("a step's first backward begins on all ranks or on none") {
  on_a_rank rank;
  (void)rank.trainer->graph();
  const std::size_t before = rank.met;
  (void)rank.trainer->run_batch();
  CHECK(rank.met == before + 1);
  rank.gives_up = true;
  for (const at::Tensor& p : rank.user.net->parameters()) p.mutable_grad() = at::Tensor{};
  CHECK_THROWS_WITH_AS((void)rank.trainer->run_batch(), "another rank failed", comp::error);
  CHECK_FALSE(rank.user.net->parameters().front().grad().defined());
}

TEST_CASE("the exchange of gradients is an operator, whose format the step is told") {
  classification user;
  user.setup.program.exchange = true;
  std::vector<at::ScalarType> formats;
  int milliseconds = 0;
  lt::trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                        s.backward(s.forward([&] { return user.loss(batch); }));
                        s.exchange([&](at::ScalarType format) {
                          formats.push_back(format);
                          std::this_thread::sleep_for(std::chrono::milliseconds{milliseconds});
                        });
                        s.update(user.optimizer);
                      }};
  const comp::op_graph& graph = trainer.graph();
  const std::size_t last = graph.size() - 1;
  std::int64_t weights = 0;
  for (const at::Tensor& p : user.net->parameters()) weights += p.numel();
  CHECK(graph[last].name == "gradients.all_reduce");
  CHECK(graph[last].bytes == 8 * weights);
  CHECK((formats == std::vector{at::kFloat}));  // while the step is recorded

  comp::plan chosen{graph.size()};
  chosen[last] = precision::bf16;
  trainer.set_precision(chosen);
  (void)trainer.run_batch();
  CHECK((formats.back() == at::kBFloat16));
  trainer.set_precision(trainer.own_autocast(precision::bf16));  // which exchanges nothing low
  (void)trainer.run_batch();
  CHECK((formats.back() == at::kFloat));

  milliseconds = 3;
  CHECK(trainer.profile()[last].backward >= 3e-3);
  CHECK(trainer.sensitivity(precision::bf16)[last].gradient == 0x1p-9);
  CHECK(trainer.supports(graph[last], precision::fp16));
  CHECK_FALSE(trainer.supports(graph[last], precision::tf32));
  CHECK_FALSE(trainer.supports(graph[last], precision::mxfp8));
}
