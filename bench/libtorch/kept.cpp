// SPDX-License-Identifier: Apache-2.0
// The memory of a LibTorch training on this CPU: the peak of a batch in FP32, under LibTorch's autocast, by comp's plan
// of the same rules, and by that with moments in BF16 and in FP8.
//   kept [models, a part of their names]
// Bytes are those that LibTorch allocates, and the same on a busy machine.
#include <torch/nn.h>
#include <torch/optim.h>

#include <comp/autocast/rule_plan.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <exception>
#include <libtorch/trainers.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpt.hpp"
#include "more_jobs.hpp"

namespace {

using comp::plan;
using comp::precision;
namespace lt = comp::libtorch;

torch_models::job mlp_job() {
  torch::nn::Sequential net;
  for (int i = 0; i < 9; ++i) {
    net->push_back(torch::nn::Linear(1024, 1024));
    if (i < 8) net->push_back(torch::nn::ReLU());
  }
  torch_models::job of{.name = "mlp",
                       .modules = {{"net", net.ptr()}},
                       .optimizers = {bench::adamw(net)},
                       .train = {torch::randn({512, 1024}), torch::randn({512, 1024})},
                       .batch = 128};
  of.phases = {{"forward", [net](const torch_models::columns& batch) mutable {
                  return torch::mse_loss(net->forward(batch[0]), batch[1]);
                }}};
  return of;
}

/// Predicts each next token of made-up text.
torch_models::job gpt_job() {
  const native_models::gpt_options shape{.vocabulary = 512, .context = 128, .layers = 4, .width = 256, .heads = 8};
  bench::gpt net{shape};
  torch_models::job of{.name = "gpt",
                       .modules = {{"net", net.ptr()}},
                       .optimizers = {bench::adamw(net)},
                       .train = {torch::randint(shape.vocabulary, {64, shape.context + 1})},
                       .batch = 16};
  of.phases = {{"forward", [net, shape](const torch_models::columns& batch) mutable {
                  const at::Tensor scores = net->forward(batch[0].narrow(1, 0, shape.context));
                  return torch::cross_entropy_loss(scores.flatten(0, 1),
                                                   batch[0].narrow(1, 1, shape.context).flatten());
                }}};
  return of;
}

void measure(torch_models::job of) {
  for (torch::Tensor& column : of.train) column = column.narrow(0, 0, 4 * of.batch).clone();  // few, beside the states
  lt::setup given = torch_models::setup_of(of);
  given.choices = lt::executor_choices::fixed;
  given.update = lt::optimizer_pass::fused;
  given.moments = true;
  torch_models::job_trainer t = torch_models::make_trainer(of, std::move(given));
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
    fmt::print("| {}, batch {} | {} | {:.1f} MiB | {:+.1f}% | {} |\n", of.name, of.batch, label,
               peaks.back() / (1 << 20), 100 * (peaks.back() / peaks[0] - 1),
               peaks.size() > 2 ? fmt::format("{:+.1f}%", 100 * (peaks.back() / peaks[1] - 1)) : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view part = argc > 1 ? argv[1] : "";
  torch::manual_seed(1);
  fmt::print("| training | plan | peak | beside FP32's | beside autocast's |\n|---|---|---|---|---|\n");
  for (const std::string name : {"mlp", "gpt", "bert", "vit", "encoder", "lstm", "vgg16"}) {
    if (name.find(part) == std::string::npos) continue;
    try {
      measure(name == "mlp"   ? mlp_job()
              : name == "gpt" ? gpt_job()
                              : bench::any_job(name, {.size = name == "bert" ? "small" : ""}));
    } catch (const std::exception& e) {  // ATen has no LSTM in BF16 for CPUs with AVX2 alone
      fmt::print("| {} | not run: {} | | | |\n", name, e.what());
    }
  }
}
