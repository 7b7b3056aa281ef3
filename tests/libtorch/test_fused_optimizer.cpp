// SPDX-License-Identifier: Apache-2.0
#include <ATen/Version.h>

#include <comp_libtorch/train/fused_optimizer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer_support.hpp"

namespace optim = torch::optim;
using namespace libtorch_tests;

namespace {

using maker = std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;

template <class Optimizer, class Options>
std::pair<std::string, maker> with(std::string name, Options options) {
  return {std::move(name), [options](std::vector<at::Tensor> parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

const std::vector<std::pair<std::string, maker>>& fused_ones() {
  using optim::AdamOptions, optim::AdamWOptions, optim::SGDOptions;
  static const std::vector<std::pair<std::string, maker>> all{
      with<optim::Adam>("Adam", AdamOptions(1e-2)),
      with<optim::Adam>("Adam, betas, eps, decay", AdamOptions(1e-2).betas({0.5, 0.99}).eps(1e-6).weight_decay(0.1)),
      with<optim::Adam>("Adam, amsgrad", AdamOptions(1e-2).amsgrad(true)),
      with<optim::AdamW>("AdamW", AdamWOptions(1e-2)),
      with<optim::AdamW>("AdamW, amsgrad, no decay", AdamWOptions(1e-2).amsgrad(true).weight_decay(0)),
      with<optim::SGD>("SGD", SGDOptions(0.1)),
      with<optim::SGD>("SGD, decay", SGDOptions(0.1).weight_decay(0.05)),
      with<optim::SGD>("SGD, momentum, dampening", SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.05)),
      with<optim::SGD>("SGD, Nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true))};
  return all;
}

/// Odd sizes, so that kernels have ends; one weight lies channels-last, one has no gradient in the first step.
std::vector<at::Tensor> some_weights() {
  torch::manual_seed(3);
  std::vector<at::Tensor> all{torch::randn({37, 19}), torch::randn({5}), torch::randn({4, 3, 3, 3}), torch::randn({})};
  all[2] = all[2].contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& each : all) each.requires_grad_(true);
  return all;
}
void set_gradients(const std::vector<at::Tensor>& weights, int step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor gradient = torch::randn_like(weights[i].detach());
    if (step > 0 || i != 1) weights[i].mutable_grad() = gradient;
  }
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, ((a[i] - b[i]).abs() / (b[i].abs() + 1)).max().item<double>());
  return most;
}

constexpr double few_roundings = 64 * 0x1p-24;  // of FP32, over ten steps

}  // namespace

TEST_CASE("a fused step is LibTorch's own within rounding, for each optimizer that is fused, and in turns with it") {
  for (const auto& [name, make] : fused_ones()) {
    CAPTURE(name);
    const auto own = some_weights(), fused = some_weights();
    const auto usual = make(own), quick = make(fused);
    for (int step = 0; step < 10; ++step) {
      set_gradients(own, step);
      set_gradients(fused, step);
      usual->step();
      if (step % 4 == 3) {
        quick->step();
      } else {
        CHECK(lt::fused_step(*quick));
      }
      CHECK(largest_difference(fused, own) < few_roundings);
    }
    std::vector<at::Tensor> moments, expected;
    lt::append_tensors(*quick, moments);
    lt::append_tensors(*usual, expected);
    CHECK(moments.size() == expected.size());
    CHECK(quick->state().size() == usual->state().size());
    CHECK_FALSE(largest_difference(fused, some_weights()) < few_roundings);
  }
}

TEST_CASE("a weight that is listed twice is stepped twice, and a gradient stays readable for another backward") {
  for (const auto& [name, make] : fused_ones()) {
    CAPTURE(name);
    const auto own = some_weights(), fused = some_weights();
    const auto usual = make({own[0], own[0]}), quick = make({fused[0], fused[0]});
    set_gradients(own, 1);
    set_gradients(fused, 1);
    const auto version = fused[0].grad()._version();
    usual->step();
    CHECK(lt::fused_step(*quick));
    CHECK(largest_difference(fused, own) < few_roundings);
    CHECK(fused[0].grad()._version() == version);
  }
}

TEST_CASE("what the kernels would get wrong is stepped the usual way") {
  SUBCASE("weights and gradients that they do not read right") {
    using weight_pair = std::pair<at::Tensor, at::Tensor>;  // a weight and its gradient
    weight_pair (*const cases[])() = {
        [] {
          return weight_pair{torch::randn({4, 6}), torch::randn({6, 4}).t()};
        },  // lies otherwise
        [] {
          return weight_pair{torch::randn({4, 6}).narrow(1, 0, 3), torch::randn({4, 3})};
        },  // gaps between weights
        [] {
          return weight_pair{torch::randn({4}, torch::kDouble), torch::randn({4}, torch::kDouble)};
        }};
    for (const auto make : cases) {
      std::vector<at::Tensor> weights;
      for (const bool fused : {false, true}) {
        torch::manual_seed(4);
        const auto [weight, gradient] = make();
        weights.push_back(weight.requires_grad_(true));
        weights.back().mutable_grad() = gradient;
        optim::SGD optimizer{{weights.back()}, optim::SGDOptions(0.1).momentum(0.9)};
        if (fused) {
          CHECK_FALSE(lt::fused_step(optimizer));
        } else {
          optimizer.step();
        }
      }
      CHECK(largest_difference({weights[1]}, {weights[0]}) == 0);
    }
  }
  SUBCASE("a class of the user's own") {
    struct still : optim::Adam {
      using Adam::Adam;
      at::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
    };
    const auto weights = some_weights(), before = some_weights();
    still optimizer{weights};
    set_gradients(weights, 1);
    CHECK_FALSE(lt::fused_step(optimizer));
    CHECK(largest_difference(weights, before) == 0);
  }
  SUBCASE("options that ask for moments which the state does not have") {
    const auto weights = some_weights();
    optim::SGD optimizer{weights, optim::SGDOptions(0.1).momentum(0.9)};
    set_gradients(weights, 1);
    optimizer.step();
    static_cast<optim::SGDParamState&>(*optimizer.state().begin()->second).momentum_buffer(at::Tensor{});
    CHECK_THROWS(lt::fused_step(optimizer));  // LibTorch's own step, which needs them, too
  }
}

TEST_CASE("a trainer steps in one pass where it is asked to, in FP32 and under a plan alike, and says so") {
  classification usual, fused;
  fused.setup.update = lt::optimizer_pass::fused;
  classification_trainer a{usual.setup, usual.batches, usual.make_step()};
  classification_trainer b{fused.setup, fused.batches, fused.make_step()};
  CHECK(a.signature() != b.signature());
  for (const auto low : {comp::precision::fp32, comp::precision::bf16, comp::precision::fp16}) {
    CAPTURE(comp::name(low));
    a.set_precision(lowered(a.graph(), low));
    b.set_precision(lowered(b.graph(), low));
    torch::manual_seed(21);
    const comp::sample one = a.run_epoch();
    torch::manual_seed(21);
    const comp::sample other = b.run_epoch();
    CHECK(other.loss == doctest::Approx(one.loss).epsilon(low == comp::precision::fp32 ? 1e-5 : 1e-2));
    // It was the other kernel: it multiplies and adds in one rounding, if LibTorch has vectors of the CPU for that.
    const bool differs = largest_difference(fused.net->parameters(), usual.net->parameters()) > 0;
    CHECK(differs == (at::get_cpu_capability() != "DEFAULT"));
  }
}
