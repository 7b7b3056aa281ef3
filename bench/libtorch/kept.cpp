// SPDX-License-Identifier: Apache-2.0
// The memory of a LibTorch training with AdamW on this CPU: the peak of a batch in FP32, under LibTorch's autocast, by
// comp's plan of the same rules, and by that with moments in BF16 and in FP8.
//   kept [models, a part of their names]
// Bytes are those that LibTorch allocates, and the same on a busy machine.
#include <torch/nn.h>
#include <torch/optim.h>

#include <comp/autocast/rule_plan.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using comp::plan;
using comp::precision;
namespace lt = comp::libtorch;

/// Reads the last output of an LSTM of two layers.
struct lstm_net : torch::nn::Module {
  torch::nn::LSTM lstm{
      register_module("lstm", torch::nn::LSTM{torch::nn::LSTMOptions{256, 512}.num_layers(2).batch_first(true)})};
  torch::nn::Linear head{register_module("head", torch::nn::Linear{512, 256})};
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x)).select(1, -1)); }
};

struct encoder_net : torch::nn::Module {
  using layer = torch::nn::TransformerEncoderLayerOptions;
  torch::nn::TransformerEncoder layers{register_module(
      "layers", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                    torch::nn::TransformerEncoderLayer(layer(256, 4).dim_feedforward(1024).dropout(0)), 4)))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear{256, 256})};
  at::Tensor forward(const at::Tensor& x) { return head(layers(x.transpose(0, 1)).select(0, 0)); }
};

void measure(const std::string& name, torch::nn::Module& net,
             const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& x, const at::Tensor& y) {
  torch::optim::AdamW optimizer{net.parameters(), torch::optim::AdamWOptions(1e-4)};
  lt::trainer t{lt::setup{.modules = {{"net", net}},
                          .optimizers = {&optimizer},
                          .choices = lt::executor_choices::fixed,
                          .update = lt::optimizer_pass::fused,
                          .moments = true},
                lt::tensor_batches(x, y, {.batch = y.size(0) / 4}),
                [&](lt::step& s, const torch::data::Example<>& batch) {
                  s.backward(s.forward([&] { return torch::mse_loss(forward(batch.data), batch.target); }));
                  s.update(optimizer);
                }};
  const comp::op_graph& graph = t.graph();
  const comp::policy::pytorch lists{.list = comp::policy::pytorch_list::cpu, .low = precision::bf16};
  std::vector<std::pair<std::string, plan>> all{{"FP32", plan{graph.size()}},
                                                {"LibTorch's autocast", t.own_autocast(precision::bf16)}};
  all.emplace_back("the rules by comp", comp::autocast::rule_plan(lists, graph, precision::bf16));
  for (const auto& [words, format] :
       {std::pair{"these, moments in BF16", precision::bf16}, {"these, moments in FP8", precision::fp8_e4m3}}) {
    plan low = all[2].second;
    for (std::size_t i = 0; i < low.size(); ++i) low[i] = graph[i].is_state ? format : low[i];
    all.emplace_back(words, low);
  }
  std::vector<double> peaks;
  for (const auto& [label, p] : all) {
    t.set_precision(p);
    for (int batch = 0; batch < 3; ++batch) {
      const comp::sample got = t.run_batch();
      if (batch == 2) peaks.push_back(static_cast<double>(got.peak_bytes));
    }
    fmt::print("| {} | {} | {:.1f} MiB | {:+.1f}% | {} |\n", name, label, peaks.back() / (1 << 20),
               100 * (peaks.back() / peaks[0] - 1),
               peaks.size() > 2 ? fmt::format("{:+.1f}%", 100 * (peaks.back() / peaks[1] - 1)) : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view part = argc > 1 ? argv[1] : "";
  const auto wanted = [&](std::string_view name) { return name.find(part) != std::string_view::npos; };
  torch::manual_seed(1);
  fmt::print("| training | plan | peak | beside FP32's | beside autocast's |\n|---|---|---|---|---|\n");
  if (wanted("mlp")) {
    torch::nn::Sequential net;
    for (int i = 0; i < 9; ++i) {
      net->push_back(torch::nn::Linear(1024, 1024));
      if (i < 8) net->push_back(torch::nn::ReLU());
    }
    measure(
        "MLP of 9 x 1024, batch 128", *net, [&](const at::Tensor& x) { return net->forward(x); },
        torch::randn({512, 1024}), torch::randn({512, 1024}));
  }
  if (wanted("lstm")) {
    lstm_net net;
    const char* const name = "LSTM of 2 x 512, batch 32, 32 steps";
    try {
      measure(
          name, net, [&](const at::Tensor& x) { return net.forward(x); }, torch::randn({128, 32, 256}),
          torch::randn({128, 256}));
    } catch (const std::exception& e) {  // ATen has no LSTM in BF16 for CPUs with AVX2 alone
      fmt::print("| {} | not run: {} | | | |\n", name, e.what());
    }
  }
  if (wanted("encoder")) {
    encoder_net net;
    measure(
        "encoder of 4 layers, width 256, batch 16, 64 tokens", net, [&](const at::Tensor& x) { return net.forward(x); },
        torch::randn({64, 64, 256}), torch::randn({64, 256}));
  }
}
