// SPDX-License-Identifier: Apache-2.0
// The native trainer on this CPU beside LibTorch: the same models, batches, optimizers and threads, steps in turns in
// one process. FP32 both; BF16: LibTorch's autocast against the native trainer with all operators in BF16.
//   host [rounds] [threads] [file.json] [models, a part of their names]
#include <ATen/Parallel.h>
#include <torch/optim.h>

#include <chrono>
#include <comp/core/statistics.hpp>
#include <comp_host/device.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_native/trainer.hpp>
#include <cstdlib>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/graph_data.hpp>
#include <examples/models/native/models.hpp>
#include <fstream>
#include <functional>
#include <libtorch/jobs.hpp>
#include <libtorch/vgg16.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "gpt.hpp"

namespace {

using namespace comp::native;
using comp::precision;
using native_models::image_data;
using native_models::token_data;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// One model in one precision: a step of ours and a step of LibTorch's, each with its loss read.
struct duel {
  std::string name;
  std::function<void()> ours, theirs;
  std::vector<double> our_seconds = {}, their_seconds = {};
};

using host_trainer = trainer<comp::host::device>;

std::shared_ptr<host_trainer> native_trainer(comp::host::device& device, model m, const data_source& data,
                                             optimizer with, precision p, double clip_norm = 0) {
  auto made = std::make_shared<host_trainer>(device, std::move(m), data, data,
                                             training{.optimizer = with, .clip_norm = clip_norm});
  comp::plan all{made->graph().size()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (made->graph()[i].choosable) all[i] = p;
  }
  made->set_precision(all);
  return made;
}

/// A step as a LibTorch user writes it; under autocast for BF16.
std::function<void()> torch_step(precision p, std::shared_ptr<torch::optim::Optimizer> optimizer,
                                 std::function<torch::Tensor()> loss_of_next) {
  return [=] {
    torch::Tensor loss;
    {
      const comp::libtorch::autocast_guard on{at::kCPU, at::kBFloat16, p == precision::bf16};
      loss = loss_of_next();
    }
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    (void)loss.item<float>();
  };
}

constexpr std::int64_t image_batch = 64, images = 256;
const native_models::gpt_options gpt_shape{
    .batch = 16, .vocabulary = 96, .context = 64, .layers = 4, .width = 256, .heads = 4};

/// Noise: the arithmetic takes as long whatever the values are.
image_data noise_images() {
  random_stream draws{1, 1};
  std::vector<std::uint8_t> pixels(images * 3 * 32 * 32);
  std::vector<std::int32_t> labels(images);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(draws.below(256));
  for (auto& label : labels) label = static_cast<std::int32_t>(draws.below(100));
  return {{3, 32, 32}, std::move(pixels), std::move(labels), {0.5F}, {0.25F}};
}
token_data noise_tokens() {
  random_stream draws{1, 2};
  std::vector<std::int32_t> tokens(64 * 64 + 1);
  for (auto& token : tokens) token = static_cast<std::int32_t>(draws.below(96));
  return {std::move(tokens), gpt_shape.context};
}

duel vgg_duel(comp::host::device& device, precision p) {
  const auto ours = native_trainer(device, native_models::vgg16({.batch = image_batch, .classes = 100}), noise_images(),
                                   sgd(0.01, 0.9, 5e-4), p);
  torch_models::vgg16 net{torch_models::image_options{.side = 32, .classes = 100}};
  const auto optimizer = std::make_shared<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(5e-4));
  const auto x = torch::randint(0, 256, {images, 3, 32, 32}, torch::kByte), y = torch::randint(0, 100, {images});
  const auto loss = [=]() mutable {
    const auto rows = torch::randint(0, images, {image_batch});
    const auto batch = x.index_select(0, rows).to(torch::kFloat).div_(255).sub_(0.5).div_(0.25);
    return torch::cross_entropy_loss(net->forward(batch), y.index_select(0, rows));
  };
  return {fmt::format("VGG16/CIFAR, batch 64, {}", name(p)), [=] { ours->run_batch(); },
          torch_step(p, optimizer, loss)};
}

duel gpt_duel(comp::host::device& device, precision p) {
  const auto ours = native_trainer(device, native_models::gpt(gpt_shape), noise_tokens(), adamw(1e-4), p);
  bench::gpt net{gpt_shape};
  const auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-4));
  const auto tokens = torch::randint(0, 96, {64, gpt_shape.context + 1});
  const auto loss = [=]() mutable {
    const auto rows = tokens.index_select(0, torch::randint(0, 64, {gpt_shape.batch}));
    const auto logits = net->forward(rows.narrow(1, 0, gpt_shape.context));
    return torch::cross_entropy_loss(logits.flatten(0, 1), rows.narrow(1, 1, gpt_shape.context).flatten());
  };
  return {fmt::format("transformer, batch 16, {}", name(p)), [=] { ours->run_batch(); },
          torch_step(p, optimizer, loss)};
}

/// A step of one of LibTorch's jobs; under autocast for BF16.
std::function<void()> job_step(precision p, const std::string& name) {
  return [=, job = std::make_shared<torch_models::job>(torch_models::make_job(name, {}))] {
    const torch::Tensor rows = torch::randperm(job->examples()).narrow(0, 0, job->batch);
    const torch_models::columns batch = pick(*job, job->train, rows);
    (void)train_step(*job, [&](const torch_models::phase& part) {
      const comp::libtorch::autocast_guard on{at::kCPU, at::kBFloat16, p == precision::bf16};
      return part.loss(batch);
    });
  };
}

/// Whole windows of random tokens: what LibTorch's job makes up.
struct noise_windows {
  std::int64_t length = 192;
  std::size_t size() const { return 64; }
  example_layout layout() const {
    return {.input = input_kind::tokens, .input_shape = {2, length}, .target_shape = {2}};
  }
  void write(std::size_t i, const example_spans& to) const {
    random_stream draws{1, i};
    for (std::size_t t = 0; t < to.tokens.size() / 2; ++t) {
      to.tokens[t] = static_cast<std::int32_t>(draws.below(1000));
      to.tokens[to.tokens.size() / 2 + t] = t > 2 ? 1 : 0;
    }
    to.labels[0] = to.labels[1] = static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(length)));
  }
  std::string signature() const { return "noise"; }
};

duel bert_duel(comp::host::device& device, precision p) {
  native_models::bert_options shape = native_models::bert_small();
  shape.vocabulary = 1000;
  const auto ours = native_trainer(device, native_models::bert(shape), noise_windows{}, adamw(1e-4), p, 1);
  return {fmt::format("BERT (4 layers, width 256), batch 16, {}", name(p)), [=] { ours->run_batch(); },
          job_step(p, "bert")};
}

duel gan_duel(comp::host::device& device, precision p) {
  random_stream draws{1, 3};
  std::vector<std::uint8_t> pixels(std::size_t{2048} * 784);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(draws.below(256));
  const image_data data{{1, 28, 28}, std::move(pixels), std::vector<std::int32_t>(2048), {0.5F}, {0.5F}};
  const auto ours =
      native_trainer(device, native_models::gan({}), data, adam_options{.learning_rate = 2e-4, .beta1 = 0.5}, p);
  return {fmt::format("GAN, batch 156, {}", name(p)), [=] { ours->run_batch(); }, job_step(p, "gan")};
}

/// A job of the examples, its batch in memory.
duel job_duel(std::string what, precision p, std::shared_ptr<host_trainer> ours, torch_models::job theirs) {
  const auto rows = torch::arange(theirs.batch);
  const auto batch = torch_models::pick(theirs, theirs.train, rows);
  return {fmt::format("{}, {}", what, name(p)), [ours] { ours->run_batch(); },
          torch_step(p, theirs.optimizers[0],
                     [loss = theirs.phases[0].loss, batch, kept = theirs.modules] { return loss(batch); })};
}
/// On a made-up graph of Cora's sizes.
duel node_duel(comp::host::device& device, precision p, bool attends) {
  const auto graph = data_sets::made_up_graph(1);
  const auto set = native_models::graph_data(graph, 1);
  model m = attends ? native_models::gat({.features = set.features, .edges = set.adjacency})
                    : native_models::gcn({.features = set.features, .adjacency = set.adjacency});
  const auto ours = native_trainer(device, std::move(m), set.train, adam(attends ? 0.005 : 0.01, 5e-4), p);
  return job_duel(attends ? "GAT, 2708 nodes" : "GCN, 2708 nodes", p, ours,
                  attends ? torch_models::gat_job({}) : torch_models::gcn_job({}));
}
duel simple_net_duel(comp::host::device& device, precision p) {
  const auto ours = native_trainer(device, native_models::simple_net({}), native_models::random_examples{1024, 2560, 1},
                                   sgd(1e-4), p);
  return job_duel("SimpleNet, batch 256", p, ours, torch_models::simple_net_job({}));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 12, 6);
  const int threads = argc > 2 ? std::atoi(argv[2]) : static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(threads);
  comp::host::device device{{.threads = threads}};
  const std::string part = argc > 4 ? argv[4] : "";
  const auto wanted = [&](const char* model) { return std::string_view{model}.find(part) != std::string_view::npos; };
  std::vector<duel> duels;
  for (const precision p : {precision::fp32, precision::bf16}) {
    if (wanted("VGG16")) duels.push_back(vgg_duel(device, p));
    if (wanted("transformer")) duels.push_back(gpt_duel(device, p));
    if (wanted("BERT")) duels.push_back(bert_duel(device, p));
    if (wanted("GAN")) duels.push_back(gan_duel(device, p));
    if (wanted("GCN")) duels.push_back(node_duel(device, p, false));
    if (wanted("GAT")) duels.push_back(node_duel(device, p, true));
    if (wanted("SimpleNet")) duels.push_back(simple_net_duel(device, p));
  }
  for (int round = -1; round < rounds; ++round) {  // the first is not counted
    for (duel& d : duels) {
      double ours = 0, theirs = 0;
      for (const bool us : {round % 2 == 0, round % 2 != 0}) (us ? ours : theirs) = seconds_of(us ? d.ours : d.theirs);
      if (round < 0) continue;
      d.our_seconds.push_back(ours);
      d.their_seconds.push_back(theirs);
    }
  }
  nlohmann::json all{{"bench", "libtorch host"}, {"hardware", device.hardware().name}, {"threads", threads}};
  fmt::print("| job | LibTorch | native | native's speed, of LibTorch's (95%) |\n|---|---|---|---|\n");
  for (const duel& d : duels) {
    const auto speed = comp::compare_paired(d.their_seconds, d.our_seconds);
    const double ours = comp::median(d.our_seconds), theirs = comp::median(d.their_seconds);
    fmt::print("| {} | {:.1f} ms | {:.1f} ms | {:.2f} ({:.2f} to {:.2f}) |\n", d.name, theirs * 1e3, ours * 1e3,
               speed.ratio, speed.bounds.low, speed.bounds.high);
    all["jobs"].push_back({{"job", d.name},
                           {"libtorch_seconds", theirs},
                           {"native_seconds", ours},
                           {"speed", speed.ratio},
                           {"interval_95", {speed.bounds.low, speed.bounds.high}}});
  }
  if (argc > 3 && *argv[3] != 0) std::ofstream{argv[3]} << all.dump(2) << '\n';
}
