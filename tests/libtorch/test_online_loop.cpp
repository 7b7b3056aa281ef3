// SPDX-License-Identifier: Apache-2.0
// A loop of the user's own finds its plan while it runs, as docs/how-to/libtorch-step.md has it.
#include <doctest/doctest.h>

#include <comp/search/online.hpp>
#include <comp_libtorch/train/training_state.hpp>
#include <limits>
#include <optional>

#include "program_support.hpp"

TEST_CASE("a loop finds its plan while it runs, and has its weights back after a harmful one") {
  for (const bool harms : {false, true}) {
    CAPTURE(harms);
    torch::manual_seed(1);
    const auto x = torch::randn({8, 4}), y = torch::randn({8, 1});
    torch::nn::Linear net{4, 1};
    torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions{0.01}};
    const auto loss_of = [&] { return torch::mse_loss(net->forward(x), y); };
    comp::libtorch::setup kept{.modules = {{"net", net}}, .optimizers = {&optimizer}};
    program p;
    record(p, {net.ptr(), loss_of});

    std::optional<comp::libtorch::training_state> state;
    comp::online online{comp::policy::pytorch{},
                        p.graph(),
                        {.precisions = {precision::fp32, precision::bf16},
                         .batches_per_epoch = 20,
                         .save = [&] { state = comp::libtorch::save_training(kept, device); },
                         .restore = [&] { comp::libtorch::restore_training(*state, kept, device); }}};
    bool lowered = false;
    for (int batch = 0; batch < 2000 && online.found() == nullptr; ++batch) {
      p.set_plan(online.plan());
      lowered = lowered || p.lowers();
      const torch::Tensor loss = inside(p, loss_of);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      const bool bad = harms && p.lowers();
      if (bad) torch::nn::init::constant_(net->weight, std::numeric_limits<double>::quiet_NaN());
      online.tell({.loss = bad ? std::numeric_limits<double>::quiet_NaN() : loss.item<double>(),
                   .seconds = p.lowers() ? 0.5 : 1.0});
      REQUIRE(net->weight.isfinite().all().item<bool>());
    }
    CHECK(lowered);
    REQUIRE(online.found() != nullptr);
    CHECK((online.found()->plan.count_lowered(p.graph()) > 0) == !harms);
  }
}
