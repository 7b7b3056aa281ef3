// SPDX-License-Identifier: Apache-2.0
// Small models and steps for the tests of comp::libtorch::program.
#pragma once

#include <torch/torch.h>

#include <comp/autocast/rule_plan.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp_libtorch/plan/checkpoint.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device.hpp"
#include "regions.hpp"

namespace {

using comp::precision;
using comp::libtorch::program;
using comp::libtorch::program_settings;
using libtorch_tests::device;
using libtorch_tests::evaluated_in;
using libtorch_tests::inside;
using libtorch_tests::recorded;
using torch::nn::AnyModule;

/// True when both are the same bits.
[[maybe_unused]] bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || (a.dtype() == b.dtype() && torch::equal(a, b)));
}

/// A model, its batch and what is minimised.
struct job {
  std::shared_ptr<torch::nn::Module> model;
  std::function<torch::Tensor()> loss;
};

[[maybe_unused]] job mlp(int layers = 3, std::int64_t width = 32) {
  torch::nn::Sequential net;
  for (int i = 0; i < layers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::ReLU());
  }
  const auto x = torch::randn({16, width}).to(device);
  net->to(device);
  return {net.ptr(), [=]() mutable { return net->forward(x).pow(2).mean(); }};
}

[[maybe_unused]] job conv_net() {
  using namespace torch::nn;
  Sequential net{Conv2d{Conv2dOptions{3, 8, 3}.padding(1)},
                 BatchNorm2d{8},
                 ReLU{ReLUOptions{true}},
                 MaxPool2d{2},
                 Conv2d{Conv2dOptions{8, 16, 3}.padding(1)},
                 BatchNorm2d{16},
                 ReLU{},
                 Flatten{},
                 Dropout{0.3},
                 Linear{16 * 4 * 4, 10}};
  const auto x = torch::randn({4, 3, 8, 8}).to(device);
  const auto y = torch::randint(10, {4}, torch::kLong).to(device);
  net->to(device);
  return {net.ptr(), [=]() mutable { return functional::cross_entropy(net->forward(x), y); }};
}

[[maybe_unused]] job transformer() {
  using namespace torch::nn;
  const auto options = TransformerEncoderLayerOptions{16, 2}.dim_feedforward(32).dropout(0.1).activation(torch::kGELU);
  TransformerEncoder net{TransformerEncoderOptions{TransformerEncoderLayer{options}, 2}};
  const auto x = torch::randn({5, 3, 16}).to(device);
  net->to(device);
  return {net.ptr(), [=]() mutable { return net->forward(x).pow(2).mean(); }};
}

template <class Net, class Options>
job recurrent_of() {
  Net net{Options{8, 12}.num_layers(2)};
  const auto x = torch::randn({6, 3, 8}).to(device);
  net->to(device);
  return {net.ptr(), [=]() mutable { return std::get<0>(net->forward(x)).pow(2).mean(); }};
}

/// Matrix products that ATen makes of others.
[[maybe_unused]] job products() {
  struct weights : torch::nn::Module {
    torch::Tensor add(const char* name, at::IntArrayRef sizes) {
      return register_parameter(name, torch::randn(sizes) / 4);
    }
    torch::Tensor a = add("a", {8, 12}), b = add("b", {12, 12}), c = add("c", {8, 12}), d = add("d", {12, 8}),
                  e = add("e", {12, 12});
  };
  const auto net = std::make_shared<weights>();
  const auto x = torch::randn({6, 3, 8}).to(device);
  net->to(device);
  return {net, [=] {
            auto y = torch::einsum("tbi,ih->tbh", {x, net->a});
            y = torch::einsum("tbi,hi->tbh", {torch::relu(y), net->b});
            const auto z = torch::tensordot(x, net->c, {2}, {0}) + torch::inner(x, net->d);
            const auto cube = torch::linalg_matrix_power(net->e, 3) + torch::linalg_multi_dot({net->e, net->e, net->e});
            return (y + z).pow(2).mean() + cube.mean();
          }};
}

/// Three blocks with dropout; `again`: each is run again in the backward.
struct blocks : torch::nn::Module {
  explicit blocks(bool run_again, std::int64_t width = 32) : again{run_again} {
    for (int i = 0; i < 3; ++i) {
      const auto name = "block" + std::to_string(i);
      parts.push_back(
          register_module(name, torch::nn::Sequential{torch::nn::Linear{width, 4 * width}, torch::nn::GELU{},
                                                      torch::nn::Dropout{0.2}, torch::nn::Linear{4 * width, width}}));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& part : parts) {
      const auto block = [&part](const at::Tensor& h) { return h + part->forward(h); };
      x = again ? comp::libtorch::checkpoint(block, x) : block(x);
    }
    return x;
  }
  bool again;
  std::vector<torch::nn::Sequential> parts;
};

[[maybe_unused]] job of_blocks(bool again, std::int64_t rows = 16) {
  torch::manual_seed(4);
  const auto net = std::make_shared<blocks>(again);
  const auto x = torch::randn({rows, 32}).to(device);
  net->to(device);
  return {net, [=] { return net->forward(x).pow(2).mean(); }};
}

/// An energy and its slope by the positions, which is fitted; `order` 2 also fits the second derivative.
[[maybe_unused]] job with_slopes(int order) {
  torch::manual_seed(5);
  torch::nn::Sequential net{torch::nn::Linear{6, 32}, torch::nn::Tanh{}, torch::nn::Linear{32, 32}, torch::nn::Tanh{},
                            torch::nn::Linear{32, 1}};
  const auto x = torch::randn({16, 6}).requires_grad_();
  net->to(device);
  return {net.ptr(), [=]() mutable {
            const auto energy = net->forward(x);
            torch::Tensor slope = torch::autograd::grad({energy.sum()}, {x}, {}, true, true).front();
            for (int k = 1; k < order; ++k) slope = torch::autograd::grad({slope.sum()}, {x}, {}, true, true).front();
            return (slope + x).pow(2).mean() + energy.pow(2).mean();
          }};
}

/// oneDNN's LSTM in BF16, which LibTorch calls, needs AVX-512.
[[maybe_unused]] bool runs_low_lstm() { return comp::libtorch::probe(c10::kCPU).has("avx512_core"); }

[[maybe_unused]] std::vector<std::pair<std::string, job (*)()>> all_jobs() {
  using namespace torch::nn;
  std::vector<std::pair<std::string, job (*)()>> jobs{{"mlp", [] { return mlp(); }},
                                                      {"conv_net", conv_net},
                                                      {"transformer", transformer},
                                                      {"products", products},
                                                      {"rnn", recurrent_of<RNN, RNNOptions>}};
  const bool has_cells = device.is_cpu() || at::globalContext().hasCuDNN();  // the stand-in for a GPU has none
  if (has_cells) jobs.emplace_back("gru", recurrent_of<GRU, GRUOptions>);
  if (has_cells && runs_low_lstm()) jobs.emplace_back("lstm", recurrent_of<LSTM, LSTMOptions>);
  return jobs;
}

/// Records the forward of `it`, whose state (running statistics, random numbers) is as before.
[[maybe_unused]] void record(program& p, const job& it) {
  std::vector<torch::Tensor> before;
  for (const auto& buffer : it.model->buffers()) before.push_back(buffer.clone());
  const comp::libtorch::generator_guard as_before{device};
  p.name_parameters(*it.model);
  recorded(p, it.loss);
  const torch::NoGradGuard no_gradients;
  for (std::size_t i = 0; i < before.size(); ++i) it.model->buffers()[i].copy_(before[i]);
}

/// Loss, gradients, buffers and random state after `steps` steps of Adam.
struct outcome {
  std::vector<torch::Tensor> losses = {};
  std::vector<torch::Tensor> tensors = {};
};

[[maybe_unused]] outcome train(const job& it, int steps, program* p) {
  torch::optim::Adam optimizer{it.model->parameters(), torch::optim::AdamOptions{1e-2}};
  outcome result;
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    const torch::Tensor loss = p != nullptr ? inside(*p, it.loss) : it.loss();
    loss.backward();
    optimizer.step();
    if (p != nullptr) p->end_step();
    result.losses.push_back(loss.detach().clone());
  }
  for (const auto& parameter : it.model->parameters()) {
    result.tensors.push_back(parameter.detach().clone());
    result.tensors.push_back(parameter.grad().clone());
  }
  for (const auto& buffer : it.model->buffers()) result.tensors.push_back(buffer.clone());
  const auto generators = comp::libtorch::generator_states::save(device);
  result.tensors.insert(result.tensors.end(), generators.tensors().begin(), generators.tensors().end());
  return result;
}

/// Trains `it` under `chosen`. Returns: what the training gave, and what went otherwise than it was recorded.
[[maybe_unused]] std::pair<outcome, comp::libtorch::program_problems> train_under(const comp::plan& chosen,
                                                                                  const job& it, int steps) {
  program p{{.device = device}};
  record(p, it);
  p.set_plan(chosen);
  outcome got = train(it, steps, &p);
  return {std::move(got), p.problems()};
}

/// Same weights and data, made again.
[[maybe_unused]] job again(job (*make)()) {
  torch::manual_seed(7);
  return make();
}

[[maybe_unused]] bool same(const outcome& a, const outcome& b) {
  bool all = a.losses.size() == b.losses.size() && a.tensors.size() == b.tensors.size();
  for (std::size_t i = 0; all && i < a.losses.size(); ++i) all = same(a.losses[i], b.losses[i]);
  for (std::size_t i = 0; all && i < a.tensors.size(); ++i) all = same(a.tensors[i], b.tensors[i]);
  return all;
}

[[maybe_unused]] comp::plan everywhere(const comp::op_graph& graph, precision low) {
  comp::plan plan = as_written(graph);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (graph[i].choosable) plan[i] = low;
  }
  return plan;
}

[[maybe_unused]] comp::plan autocast_plan(const comp::op_graph& graph) {
  return comp::autocast::rule_plan(
      comp::policy::pytorch{.list = libtorch_tests::autocast_list(), .low = precision::bf16}, graph, precision::bf16);
}

/// Index of the operator called `name`; the graph's size if there is none.
[[maybe_unused]] std::size_t index_of(const comp::op_graph& graph, std::string_view name) {
  std::size_t i = 0;
  while (i < graph.size() && graph[i].name != name) ++i;
  return i;
}

/// Records `forward` and runs it under the plan that gives each named operator BF16.
auto run_low(program& p, const std::vector<std::string>& names, auto&& forward) {
  recorded(p, forward);
  comp::plan chosen = as_written(p.graph());
  for (const std::string& name : names) chosen[index_of(p.graph(), name)] = precision::bf16;
  p.set_plan(chosen);
  return inside(p, forward);
}

}  // namespace
