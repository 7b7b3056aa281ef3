// SPDX-License-Identifier: Apache-2.0
// The model of tests/python/test_languages.py in C++, for plan files that go from one language to the other.
// Usage: same_model save|use PLAN.json [TRACED.pt]
//   save: records a forward and writes a plan of it, BF16 for all operators that may have it, and trains under it.
//   use:  trains two steps under the plan; both print it. TRACED.pt: a module that was traced or scripted in Python, in
//         place of the model.
//        same_model save_modules|use_modules PLAN.json
//   The model of C++'s own modules, under the name "net", whose Linear calls addmm, or matmul for three dimensions.
//         save_modules: a plan that has its linear layers "5" and "q" in BF16 alone. use_modules: prints the formats
//         of its convolution's results, those of its linear layers "5" and "q", and its scores.
#include <torch/script.h>
#include <torch/torch.h>

#include <comp/files/plan_file.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <exception>
#include <functional>
#include <memory>
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

/// As Python's modules and C++'s are written.
struct of_modules : torch::nn::Module {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions{3, 8, 3}.padding(1)};
  torch::nn::Linear linear{8 * 16, 4}, q{4, 4}, k{4, 4};
  std::string formats;
  of_modules() {
    register_module("0", conv);
    register_module("5", linear);
    register_module("q", q);
    register_module("k", k);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor images = conv->forward(x);
    at::Tensor h = torch::max_pool2d(torch::dropout(torch::relu(images), 0.2, true), {2, 2}, {2, 2});
    h = linear->forward(torch::flatten(h, 1));
    const at::Tensor rows = h.unsqueeze(0), a = q->forward(rows);
    const at::Tensor scores = torch::matmul(a, k->forward(rows).transpose(-1, -2));
    formats.clear();
    for (const at::Tensor& each : {images, h, a, scores})
      formats += fmt::format(" {}", c10::toString(each.scalar_type()));
    return torch::matmul(torch::softmax(scores, -1), rows).squeeze(0);
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

void save_modules(const std::string& path) {
  of_modules net;
  comp::libtorch::program program;
  program.name_parameters(net, "net");
  record(program, [&](const at::Tensor& x) { return net.forward(x); });
  comp::plan plan{program.graph().size()};
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const comp::op_info& op = program.graph()[i];
    if (op.kind == "aten::addmm" || op.name == "net.q.matmul") plan[i] = comp::precision::bf16;
  }
  comp::save(plan, program.graph(), comp::libtorch::probe(at::kCPU), path);
}

void use_modules(const std::string& path) {
  auto net = std::make_shared<of_modules>();
  comp::libtorch::planned_region planned{{{"net", *net}}, path, {.forced = true}};
  for (int step = 0; step < 2; ++step) {
    const auto on = planned.enter();
    (void)net->forward(torch::ones({16, 3, 8, 8}));
  }
  for (const std::string& warning : planned.warnings()) fmt::print("{} ", warning);
  fmt::print("{}\n", net->formats);
}

int run(const std::vector<std::string>& arguments) {
  if (arguments[0] == "save_modules") return save_modules(arguments[1]), 0;
  if (arguments[0] == "use_modules") return use_modules(arguments[1]), 0;
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
    comp::save(plan, program.graph(), comp::libtorch::probe(at::kCPU), arguments[1]);
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
