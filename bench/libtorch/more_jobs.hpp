// SPDX-License-Identifier: Apache-2.0
// The networks of networks.hpp as jobs: made-up data of ten classes, a pattern of each class under noise.
#pragma once

#include <libtorch/jobs.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "networks.hpp"

namespace bench {

using torch_models::columns;
using torch_models::job;

inline constexpr std::int64_t classes = 10;

/// `shape`: of an example. `batches`: of an epoch.
job class_job(std::string name, auto net, std::vector<std::int64_t> shape, std::int64_t batch,
              std::shared_ptr<torch::optim::Optimizer> optimizer, std::int64_t batches) {
  std::vector<std::int64_t> patterns = shape, all = shape;
  patterns.insert(patterns.begin(), classes);
  all.insert(all.begin(), batches * batch);
  const torch::Tensor of_class = torch::randint(0, classes, {batches * batch});
  const torch::Tensor rows = torch::randn(patterns).index_select(0, of_class) * 0.3 + torch::randn(all);
  job task{.name = name,
           .description = std::move(name) + " on made-up data",
           .modules = {{"net", net.ptr()}},
           .optimizers = {std::move(optimizer)},
           .train = {rows, of_class},
           .validation = {rows.narrow(0, 0, batch), of_class.narrow(0, 0, batch)},
           .batch = batch};
  task.phases = {{"forward", [net](const columns& batch) mutable {
                    return torch::cross_entropy_loss(net->forward(batch[0]), batch[1]);
                  }}};
  task.score = [net](const job& of) mutable {
    return accuracy(of, of.validation, [&](const columns& batch) { return net->forward(batch[0]); });
  };
  return task;
}

std::shared_ptr<torch::optim::Optimizer> adam(auto net, double rate = 3e-4) {
  return std::make_shared<torch::optim::Adam>(net->parameters(), torch::optim::AdamOptions(rate));
}
std::shared_ptr<torch::optim::Optimizer> adamw(auto net, double rate = 3e-4) {
  return std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(rate));
}

struct lstm_impl : recurrent_impl<torch::nn::LSTM, torch::nn::LSTMOptions> {
  using recurrent_impl::recurrent_impl;
};
TORCH_MODULE_IMPL(lstm, lstm_impl);
struct gru_impl : recurrent_impl<torch::nn::GRU, torch::nn::GRUOptions> {
  using recurrent_impl::recurrent_impl;
};
TORCH_MODULE_IMPL(gru, gru_impl);

/// One of these seven, or of the seven of torch_models.
inline job any_job(std::string_view name, const torch_models::job_options& o) {
  torch::manual_seed(o.seed);
  constexpr std::int64_t width = 256, few = 16, many = 32;
  constexpr std::int64_t batches = 160;  // a search measures kernels if epochs have 150 or more
  if (name == "resnet18") {
    const resnet18 net{classes};
    auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(),
                                                   torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(5e-4));
    return class_job("resnet18", net, {3, 32, 32}, few, std::move(sgd), batches);
  }
  if (name == "lstm") {
    const lstm net{width, classes};
    return class_job("lstm", net, {32, width}, many, adam(net), batches);
  }
  if (name == "gru") {
    const gru net{width, classes};
    return class_job("gru", net, {32, width}, many, adam(net), batches);
  }
  if (name == "encoder") {
    const encoder net{width, classes};
    return class_job("encoder", net, {64, width}, few, adamw(net), batches);
  }
  if (name == "unet") {
    const unet net{32, classes};
    return class_job("unet", net, {3, 64, 64}, 8, adam(net), batches);
  }
  if (name == "vit") {
    const vit net{192, 6, classes};
    return class_job("vit", net, {3, 32, 32}, many, adamw(net), batches);
  }
  if (name == "experts") {
    const experts net{width, 2, 8, classes};
    return class_job("experts", net, {width}, 512, adamw(net), batches);
  }
  return torch_models::make_job(name, o);
}

}  // namespace bench
