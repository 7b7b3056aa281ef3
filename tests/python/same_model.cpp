// SPDX-License-Identifier: Apache-2.0
// The model of tests/python/test_languages.py in C++, for plan files that go from one language to the other.
// Usage: same_model save|use PLAN.json [TRACED.pt]
//   save: records a forward and writes a plan of it, BF16 where it can be chosen, and trains under it.
//   use:  trains two steps under the plan; both print it. TRACED.pt: a module that was traced or scripted in Python, in
//         place of the model.
#include <torch/script.h>
#include <torch/torch.h>

#include <comp/files/plan_file.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace {

using forward = std::function<at::Tensor(const at::Tensor&)>;

/// Written with the operators that Python's modules call: torch::nn::Linear would call addmm.
struct written_again : torch::nn::Module {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions{3, 8, 3}};
  torch::nn::Linear linear{8 * 16, 4};
  written_again() {
    register_module("0", conv);
    register_module("5", linear);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = torch::conv2d(x, conv->weight, conv->bias, {1, 1}, at::IntArrayRef{1, 1});
    h = torch::max_pool2d(torch::dropout(torch::relu(h), 0.2, true), {2, 2}, {2, 2});
    return torch::linear(torch::flatten(h, 1), linear->weight, linear->bias);
  }
};

void record(comp::libtorch::program& program, const forward& model) {
  const at::Tensor x = torch::ones({16, 3, 8, 8}), y = torch::zeros({16}, torch::kLong);
  program.record(true);
  {
    const auto on = program.enter();
    (void)torch::nn::functional::cross_entropy(model(x), y);
  }
  program.record(false);
}

int run(const std::vector<std::string>& arguments) {
  written_again net;
  comp::libtorch::program program;
  forward model = [&](const at::Tensor& x) { return net.forward(x); };
  torch::jit::Module traced;
  if (arguments.size() > 2) {
    torch::jit::setGraphExecutorOptimize(false);
    traced = torch::jit::load(arguments[2]);
    model = [&](const at::Tensor& x) { return traced.forward({x}).toTensor(); };
    for (const auto& parameter : traced.named_parameters()) program.name_parameter(parameter.value, parameter.name);
  } else {
    program.name_parameters(net);
  }
  record(program, model);
  comp::plan plan{program.graph().size()};
  if (arguments[0] == "save") {
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (program.graph()[i].choosable) plan[i] = comp::precision::bf16;
    }
    comp::save(plan, program.graph(), comp::hardware{}, arguments[1]);
  } else {
    plan = comp::load_plan(arguments[1], program.graph()).plan;
  }
  program.set_plan(plan);
  const at::Tensor x = torch::ones({16, 3, 8, 8}), y = torch::zeros({16}, torch::kLong);
  for (int step = 0; step < 2; ++step) {
    at::Tensor loss;
    {
      const auto on = program.enter();
      loss = torch::nn::functional::cross_entropy(model(x), y);
    }
    loss.backward();
  }
  fmt::print("{}\n", plan.str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "same_model: {}\n", e.what());
    return 1;
  }
}
