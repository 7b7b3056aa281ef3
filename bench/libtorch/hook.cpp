// SPDX-License-Identifier: Apache-2.0
// What a region of comp costs per operator, against LibTorch's autocast: a training step of an MLP so small that
// nothing else matters. FP32 without a region is the yardstick; with the plan of PyTorch's lists both compute the same.
//   hook [rounds] [steps per turn]
#include <torch/nn.h>
#include <torch/optim.h>

#include <chrono>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

struct contestant {
  std::string name;
  std::function<torch::Tensor()> loss;  // under what is measured
  comp::libtorch::program* program = nullptr;
  std::vector<double> seconds = {};  // of a step
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 60, steps = argc > 2 ? std::atoi(argv[2]) : 100;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) {
    net->push_back(torch::nn::Linear(16, 16));
    net->push_back(torch::nn::ReLU());
  }
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(1e-3)};
  const torch::Tensor x = torch::randn({4, 16}), y = torch::randn({4, 16});
  const auto forward = [&] { return torch::mse_loss(net->forward(x), y); };

  comp::libtorch::program idle, planned;
  for (comp::libtorch::program* p : {&idle, &planned}) {
    p->name_parameters(*net);
    p->record(true);
    {
      const auto on = p->enter();
      forward();
    }
    p->record(false);
  }
  const comp::policy::pytorch lists{.list = comp::policy::pytorch_list::cpu, .low = comp::precision::bf16};
  planned.set_plan(comp::autocast::rule_plan(lists, planned.graph(), comp::precision::bf16));
  const auto operators = static_cast<double>(planned.graph().size());

  const auto in_region = [&](comp::libtorch::program& p) {
    return [&] {
      const auto on = p.enter();
      return forward();
    };
  };
  const auto in_autocast = [&] {
    const comp::libtorch::autocast_guard on{at::kCPU, at::kBFloat16};
    return forward();
  };
  std::vector<contestant> all{{"FP32", forward},
                              {"comp, FP32 plan", in_region(idle), &idle},
                              {"autocast", in_autocast},
                              {"comp, autocast's plan", in_region(planned), &planned}};
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < all.size(); ++turn) {
      contestant& now = all[(static_cast<std::size_t>(round) + turn) % all.size()];
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < steps; ++i) {
        optimizer.zero_grad();
        now.loss().backward();
        optimizer.step();
      }
      now.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / steps);
    }
  }
  for (const contestant& c : all) {
    const double step = comp::median(c.seconds), bare = comp::median(all[0].seconds);
    fmt::print("{:<22} step {:7.1f} us, {:+7.0f} ns per operator over FP32\n", c.name, step * 1e6,
               (step - bare) / operators * 1e9);
  }
  const auto against = comp::compare_paired(all[2].seconds, all[3].seconds);
  fmt::print("{:.0f} operators; a step with comp is {:.3f}x as fast as with autocast (95%: {:.3f} .. {:.3f})\n",
             operators, against.ratio, against.bounds.low, against.bounds.high);
}
