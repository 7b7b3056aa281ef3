// SPDX-License-Identifier: Apache-2.0
// What page faults cost if weights are most of the memory: a step of 40 linear layers, 256 wide, under LibTorch's
// autocast and under comp's plan of the same precisions; low copies of the weights released with their region or kept,
// freed memory returned or kept, LibTorch's Adam or the fused pass. In turns in one process.
//   memory [rounds] [layers] [width] [batch]
#include <torch/nn.h>
#include <torch/optim.h>

#include <comp/autocast/rule_plan.hpp>
#include <comp/policy/pytorch.hpp>
#include <cstdlib>

#include "contest.hpp"

namespace {

enum class runs { fp32, autocast, plan };

struct contestant {
  const char* name;
  runs by;
  comp::libtorch::weight_casts weights = comp::libtorch::weight_casts::cast;
  bool keeps_pages = false, fused = false;
  std::vector<double> seconds = {}, faults = {};  // of a step
};

}  // namespace

int main(int argc, char** argv) {
  const auto given = [&](int at, int usual) { return argc > at ? std::atoi(argv[at]) : usual; };
  const int rounds = given(1, 40), layers = given(2, 40), width = given(3, 256), batch = given(4, 40);
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < layers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    if (i + 1 < layers) net->push_back(torch::nn::ReLU());
  }
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions(1e-4)};
  const torch::Tensor x = torch::randn({batch, width}), y = torch::randn({batch, width});
  const auto forward = [&] { return torch::mse_loss(net->forward(x), y); };

  comp::libtorch::program program;
  program.name_parameters(*net);
  program.record(true);
  {
    const auto on = program.enter();
    forward();
  }
  program.record(false);
  const comp::policy::pytorch lists{.list = comp::policy::pytorch_list::cpu, .low = comp::precision::bf16};
  program.set_plan(comp::autocast::rule_plan(lists, program.graph(), comp::precision::bf16));

  const auto loss_of = [&](const contestant& who) {
    if (who.by == runs::plan) {
      const auto on = program.enter();
      return forward();
    }
    std::optional<comp::libtorch::autocast_guard> on;
    if (who.by == runs::autocast) on.emplace(at::kCPU, at::kBFloat16);
    return forward();
  };
  const auto step = [&](const contestant& who) {
    optimizer.zero_grad();
    loss_of(who).backward();
    comp::libtorch::step_by(who.fused ? comp::libtorch::optimizer_pass::fused : comp::libtorch::optimizer_pass::stock,
                            optimizer);
  };
  using enum comp::libtorch::weight_casts;
  std::vector<contestant> all{{"FP32", runs::fp32},
                              {"autocast", runs::autocast},
                              {"comp", runs::plan},
                              {"comp, low weights kept", runs::plan, keep},
                              {"autocast, pages kept", runs::autocast, cast, true},
                              {"comp, pages kept", runs::plan, cast, true},
                              {"comp, both kept", runs::plan, keep, true},
                              {"autocast, pages kept, fused", runs::autocast, cast, true, true},
                              {"comp, pages kept, fused", runs::plan, cast, true, true}};
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < all.size(); ++turn) {
      contestant& now = all[(static_cast<std::size_t>(round) + turn) % all.size()];
      comp::libtorch::keep_freed_memory(now.keeps_pages);
      auto settings = program.settings();
      settings.weights = now.weights;
      program.set_settings(settings);
      step(now);
      const double faults = bench::page_faults();
      now.seconds.push_back(bench::seconds_of([&] { step(now); }));
      now.faults.push_back(bench::page_faults() - faults);
    }
  }
  for (const contestant& each : all) {
    const auto against = comp::compare_paired(all[1].seconds, each.seconds);
    fmt::print("{:<28} step {:7.2f} ms, {:5.0f} page faults, {:.3f}x autocast ({:.3f} to {:.3f})\n", each.name,
               comp::median(each.seconds) * 1e3, comp::median(each.faults), against.ratio, against.bounds.low,
               against.bounds.high);
  }
}
