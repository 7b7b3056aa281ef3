// SPDX-License-Identifier: Apache-2.0
// LibTorch's own autocast is a trainer's, which a search has as a contestant, and a plan that it runs is run by it and
// by nothing else.
#include <comp/comp.hpp>
#include <string>
#include <vector>

#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;

static_assert(comp::detail::has_autocast<classification_trainer>);

namespace {

bool autocast_is_on() { return at::autocast::is_autocast_enabled(device.type()); }

comp::hardware without_units() { return {.name = "an old CPU", .kind = comp::device_kind::cpu}; }

/// The first losses of a plain loop under LibTorch's autocast.
std::vector<double> losses_under_autocast() {
  classification user;
  std::vector<double> losses;
  torch::manual_seed(5);
  while (const auto batch = user.batches.next()) {
    at::Tensor loss;
    {
      const lt::autocast_guard on{device.type(), at::kBFloat16};
      loss = user.loss(*batch);
    }
    user.optimizer.zero_grad();
    loss.backward();
    user.optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace

TEST_CASE("a trainer runs autocast's plan under LibTorch's autocast, and no other plan") {
  classification user;
  std::vector<bool> on;
  lt::trainer trainer{user.setup, user.batches,
                      [&](lt::step& s, const torch::data::Example<>& batch) {
                        s.backward(s.forward([&] {
                          on.push_back(autocast_is_on());
                          return user.loss(batch);
                        }));
                        s.update(user.optimizer);
                      },
                      [&] {
                        on.push_back(autocast_is_on());
                        return user.accuracy();
                      }};
  torch::manual_seed(5);
  const auto before = trainer.save();
  const comp::plan real = trainer.own_autocast(precision::bf16);
  CHECK(real.runs_autocast());
  CHECK(real.count_low() > 2);
  CHECK(real.operator_by_operator() ==
        comp::autocast::rule_plan(comp::policy::pytorch{autocast_list(), precision::bf16}, trainer.graph(),
                                  precision::bf16));
  trainer.restore(before);
  const auto want = losses_under_autocast();
  on.clear();
  torch::manual_seed(5);
  trainer.set_precision(real);
  CHECK(trainer.run_epoch().curve == want);
  trainer.validate();
  CHECK((on == std::vector<bool>(5, true)));
  CHECK_FALSE(autocast_is_on());
  CHECK(trainer.executor().kept_bytes() == 0);

  on.clear();
  trainer.set_precision(real.operator_by_operator());
  trainer.run_batch();
  trainer.validate();
  CHECK(on == std::vector<bool>(2, false));

  comp::plan other = real;
  for (std::size_t i = 0; i < other.size(); ++i) {
    if (trainer.graph()[i].name == "net.6.addmm") other[i] = precision::fp32;
  }
  CHECK_THROWS_WITH_AS(trainer.set_precision(other),
                       doctest::Contains("(\"net.6.addmm\") fp32, LibTorch's autocast bf16"), comp::plan_error);
  CHECK_THROWS_AS(trainer.set_precision(comp::plan{real.size()}.as_autocast()), comp::plan_error);
}

TEST_CASE("a plan file keeps that autocast runs its plan, and a planned region runs it so") {
  const scratch_file file;
  classification user;
  comp::plan real;
  std::vector<double> want;
  {
    lt::trainer trainer{user.setup, user.batches, user.make_step()};
    real = trainer.own_autocast(precision::bf16);
    comp::save(real, trainer.graph(), trainer.hardware(), file.str());
    CHECK(comp::load_plan(file.str(), trainer.graph()).plan == real);
  }
  const auto first = *user.batches.next();
  for (const auto match : {lt::plan_match::exact, lt::plan_match::by_name}) {
    lt::planned_region planned{{{"net", user.net}}, file.str(), {.match = match}};
    for (int i = 0; i < 3; ++i) {
      const auto on = planned.enter();
      CHECK(autocast_is_on());
      user.loss(first);
    }
    CHECK(planned.planned());
    CHECK(planned.executor().current_plan() == real);
    const auto on = planned.evaluate();
    CHECK(autocast_is_on());
  }
}

TEST_CASE("a plan from a machine with units that this one lacks is refused, unless it is forced" *
          doctest::skip(comp::has_unit(precision::fp16, comp::this_cpu()))) {
  if (!device.is_cpu()) return;  // every GPU has FP16
  const scratch_file file;
  classification user;
  {
    lt::trainer trainer{user.setup, user.batches, user.make_step()};
    const comp::plan slow = lowered(trainer.graph(), precision::fp16, "addmm");
    comp::hardware other = without_units();
    other.isa = {"amx_fp16"};
    comp::save(slow, trainer.graph(), other, file.str());
    REQUIRE_FALSE(comp::policy::no_unit(precision::fp16, trainer.hardware()).empty());
  }
  for (const auto match : {lt::plan_match::exact, lt::plan_match::by_name}) {
    const auto build = [&](bool forced) {
      const lt::planned_region planned{{{"net", user.net}}, file.str(), {.match = match, .forced = forced}};
    };
    CHECK_NOTHROW(build(true));
    CHECK_THROWS_WITH_AS(
        build(false),
        doctest::Contains("(\"net.6.addmm\") fp16 (this CPU has no amx_fp16; it was found on an old CPU)"),
        comp::plan_error);
  }
}

TEST_CASE("a plan file that knows no operator of the model is refused, unless it is forced") {
  const scratch_file file;
  classification user;
  {
    lt::trainer trainer{user.setup, user.batches, user.make_step()};
    comp::save(lowered(trainer.graph(), precision::bf16), trainer.graph(), trainer.hardware(), file.str());
  }
  torch::nn::Linear other{2, 2};
  other->to(device);
  for (const bool forced : {false, true}) {
    lt::planned_region planned{{{"other", other}}, file.str(), {.forced = forced}};
    {
      const auto on = planned.enter();
      other->forward(torch::ones({1, 2}, device));
    }
    if (forced) {
      CHECK_NOTHROW((void)planned.enter());
      CHECK(planned.warnings().size() == 1);
    } else {
      CHECK_THROWS_WITH_AS((void)planned.enter(), doctest::Contains("first \"other."), comp::plan_error);
    }
  }
}
