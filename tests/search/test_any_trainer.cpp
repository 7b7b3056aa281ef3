// SPDX-License-Identifier: Apache-2.0
// Policies and strategies that are chosen while a program runs.
#include <doctest/doctest.h>

#include <comp/policy/all_fp32.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/strategy/exhaustive.hpp>

namespace {

static_assert(comp::OperatorPolicy<comp::any_policy> && comp::SearchStrategy<comp::any_strategy>);
static_assert(comp::expect_policy<comp::any_policy>() && comp::expect_strategy<comp::any_strategy>());

const comp::op_info linear{.name = "fc", .kind = "linear"};

}  // namespace

TEST_CASE("a policy chosen at run time is the one that it holds, also on a machine") {
  comp::any_policy policy = comp::policy::pytorch{};
  CHECK(policy.classify(linear) == comp::policy::pytorch{}.classify(linear));
  const comp::hardware gpu{.kind = comp::device_kind::cuda};
  const comp::op_info softmax{.name = "p", .kind = "softmax"};
  for (const auto& op : {linear, softmax})
    CHECK(comp::on_machine(policy, gpu).classify(op) == comp::policy::pytorch{}.on(gpu).classify(op));
  policy = comp::policy::all_fp32{};
  CHECK(policy.classify(linear) == comp::policy::all_fp32{}.classify(linear));
  CHECK(policy.on(gpu).classify(linear) == policy.classify(linear));
}

TEST_CASE("a strategy chosen at run time asks for what the one that it holds asks for") {
  const std::vector<comp::precision> both{comp::precision::fp32, comp::precision::bf16};
  const comp::search_space space{comp::plan{2}, {{"a", {0}, both}, {"b", {1}, both}}};
  comp::any_strategy strategy = comp::strategy::exhaustive{};
  CHECK(strategy.guide() == nullptr);
  auto alone = comp::strategy::exhaustive{}.start(space);
  auto held = strategy.start(space);
  CHECK(held.at_most() == alone.at_most());
  CHECK(held.at_most() > 0);
  CHECK(held.ask(10) == alone.ask(10));
  CHECK(held.ask(10).empty());
  CHECK(strategy.start(space).ask(1).size() == 1);  // each start is a run of its own

  strategy = comp::strategy::guided{.questions = 7};
  const comp::any_strategy copy = strategy;
  REQUIRE(copy.guide() != nullptr);
  CHECK(copy.guide()->questions == 7);
}
