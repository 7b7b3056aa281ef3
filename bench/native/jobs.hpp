// SPDX-License-Identifier: Apache-2.0
// The nine models that the native trainer is measured with, each with its optimizer and made-up data of the sizes of
// its real one: the arithmetic takes as long whatever the values are.
#pragma once

#include <array>
#include <comp/core/error.hpp>
#include <comp_native/trainer.hpp>
#include <cstdint>
#include <examples/data/made_up_graph.hpp>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/graph_data.hpp>
#include <examples/models/native/models.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

using namespace comp::native;

struct native_job {
  std::string name;
  comp::native::model model;
  data_source data;
  training settings;
};

inline constexpr std::int64_t image_batch = 64, images = 256;
inline constexpr native_models::gpt_options gpt_shape{
    .batch = 16, .vocabulary = 96, .context = 64, .layers = 4, .width = 256, .heads = 4};

inline data_source noise_images(const shape& size, std::int64_t count, std::uint64_t classes) {
  random_stream draws{1, 1};
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(count * elements(size)));
  std::vector<std::int32_t> labels(static_cast<std::size_t>(count));
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(draws.below(256));
  for (auto& label : labels) label = static_cast<std::int32_t>(draws.below(classes));
  return native_models::image_data{size, std::move(pixels), std::move(labels), {0.5F}, {0.25F}};
}
inline data_source noise_tokens() {
  random_stream draws{1, 2};
  std::vector<std::int32_t> tokens(64 * 64 + 1);
  for (auto& token : tokens) token = static_cast<std::int32_t>(draws.below(96));
  return native_models::token_data{std::move(tokens), gpt_shape.context};
}

/// Whole windows of random tokens, with the labels of a span.
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

inline native_job image_job(std::string_view name) {
  const training settings{.optimizer = sgd(0.01, 0.9, 5e-4)};
  if (name == "lenet5") {
    return {"LeNet-5/MNIST, batch 64", native_models::lenet5({.batch = image_batch}),
            noise_images({1, 28, 28}, images, 10), settings};
  }
  const auto data = noise_images({3, 32, 32}, images, 100);
  if (name == "alexnet") {
    return {"AlexNet/CIFAR, batch 64", native_models::alexnet({.batch = image_batch, .classes = 100}), data, settings};
  }
  return {"VGG16/CIFAR, batch 64", native_models::vgg16({.batch = image_batch, .classes = 100}), data, settings};
}

/// On a made-up graph of Cora's sizes.
inline native_job node_job(bool attends) {
  const auto set = native_models::graph_data(data_sets::made_up_graph(1), 1);
  return {attends ? "GAT, 2708 nodes" : "GCN, 2708 nodes",
          attends ? native_models::gat({.features = set.features, .edges = set.adjacency})
                  : native_models::gcn({.features = set.features, .adjacency = set.adjacency}),
          set.train,
          {.optimizer = adam(attends ? 0.005 : 0.01, 5e-4)}};
}

inline constexpr std::array<std::string_view, 9> native_jobs = {"lenet5", "alexnet", "vgg16", "transformer", "bert",
                                                                "gan",    "gcn",     "gat",   "simplenet"};

/// One of them. Throws: `comp::error` for another name.
inline native_job native_job_of(std::string_view name) {
  comp::require<comp::error>(std::ranges::find(native_jobs, name) != native_jobs.end(),
                             "\"{}\" is no model that is measured: use one of bench/native/jobs.hpp", name);
  if (name == "transformer") {
    return {"transformer, batch 16", native_models::gpt(gpt_shape), noise_tokens(), {.optimizer = adamw(1e-4)}};
  }
  if (name == "bert") {
    native_models::bert_options shape = native_models::bert_small();
    shape.vocabulary = 1000;
    return {"BERT (4 layers, width 256), batch 16",
            native_models::bert(shape),
            noise_windows{},
            {.optimizer = adamw(1e-4), .clip_norm = 1}};
  }
  if (name == "gan") {
    return {"GAN, batch 156",
            native_models::gan({}),
            noise_images({1, 28, 28}, 2048, 10),
            {.optimizer = adam_options{.learning_rate = 2e-4, .beta1 = 0.5}}};
  }
  if (name == "simplenet") {
    return {"SimpleNet, batch 256",
            native_models::simple_net({}),
            native_models::random_examples{1024, 2560, 1},
            {.optimizer = sgd(1e-4)}};
  }
  if (name == "gcn" || name == "gat") return node_job(name == "gat");
  return image_job(name);
}

/// Its trainer, with every operator that may choose in `p`. A training validates nothing here.
template <class D>
std::unique_ptr<trainer<D>> trainer_of(D& device, const native_job& job, comp::precision p) {
  auto new_trainer = std::make_unique<trainer<D>>(device, job.model, job.data, job.data, job.settings);
  comp::plan all{new_trainer->graph().size()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (new_trainer->graph()[i].choosable) all[i] = p;
  }
  new_trainer->set_precision(all);
  return new_trainer;
}

}  // namespace bench
