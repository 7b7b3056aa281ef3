// SPDX-License-Identifier: Apache-2.0
// A training job in plain LibTorch: modules, optimizers, data in memory, what a step computes and how good the result
// is. Nothing here knows comp: train_step() is the loop that a user has before meeting it.
#pragma once

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch_models {

/// Tensors with an example in each row: (B, ...) for B examples.
using columns = std::vector<torch::Tensor>;

struct job_options {
  std::filesystem::path data = {};    // the standard public folder or file; empty: made up, of the same shapes
  std::string size = {};              // bert: base, small, tiny; gan: connected, convolutional; the others have none
  std::int64_t batch = 0;             // 0: the paper's
  std::int64_t limit = 0;             // training examples, the first ones; 0: all
  std::int64_t side = 0;              // of JPEG pictures (0: 64) and made-up images (0: 32); 224: the ImageNet form
  std::int64_t width = 0;             // of SimpleNet; 0: 1024 (the guide has 8192)
  std::int64_t steps_per_epoch = 10;  // where a step is all the data: graphs
  double learning_rate = 0;           // 0: the job's own
  std::uint64_t seed = 1;             // of weights, made-up data, splits and dropout
  torch::Device device = torch::kCPU;
};

/// A part of a step that has a loss and an optimizer of its own; a GAN has two, the others one.
struct phase {
  std::string name = {};
  std::function<torch::Tensor(const columns& batch)> loss = {};
  std::size_t optimizer = 0;
};

struct job {
  std::string name = {};
  std::string description = {};  // one line: what is trained on what
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules = {};
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers = {};
  std::vector<phase> phases = {};  // of each step, in order
  columns train = {}, validation = {};
  std::int64_t batch = 1;
  std::function<columns(columns)> collate = {};  // rows -> what the phases read; empty: the rows themselves
  std::function<double(const job&)> score = {};  // of the validation data, higher is better
  std::string score_name = "accuracy";
  double clip_norm = 0;  // 0: gradients are not clipped

  std::int64_t examples() const { return train.front().size(0); }
  std::int64_t batches_per_epoch() const { return (examples() + batch - 1) / batch; }
  void training(bool on) const {
    for (const auto& [name, module] : modules) module->train(on);
  }
};

/// Rows of `data` by number, through the job's collate.
inline columns pick(const job& of, const columns& data, const torch::Tensor& rows) {
  columns picked;
  for (const torch::Tensor& column : data) picked.push_back(column.index_select(0, rows));
  return of.collate ? of.collate(std::move(picked)) : picked;
}

inline void usual_update(torch::optim::Optimizer& optimizer) { optimizer.step(); }

/// One step, whose forwards run as `forward(phase)` runs them. Returns: the loss of each phase.
template <class Forward>
std::vector<double> train_step(job& of, Forward forward, void (*update)(torch::optim::Optimizer&) = usual_update) {
  std::vector<double> losses;
  for (const phase& part : of.phases) {
    torch::optim::Optimizer& optimizer = *of.optimizers[part.optimizer];
    const torch::Tensor loss = forward(part);
    optimizer.zero_grad();
    loss.backward();
    for (auto& group : optimizer.param_groups()) {
      if (of.clip_norm > 0) torch::nn::utils::clip_grad_norm_(group.params(), of.clip_norm);
    }
    update(optimizer);
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// One step without comp and without mixed precision.
inline std::vector<double> train_step(job& of, const columns& batch) {
  return train_step(of, [&](const phase& part) { return part.loss(batch); });
}

/// One epoch of train_step(), shuffled. Returns: the mean loss of each phase.
inline std::vector<double> train_epoch(job& of) {
  std::vector<double> sums(of.phases.size());
  const torch::Tensor order = torch::randperm(of.examples(), of.train.front().device());
  for (const torch::Tensor& rows : order.split(of.batch)) {
    const std::vector<double> losses = train_step(of, pick(of, of.train, rows));
    std::transform(sums.begin(), sums.end(), losses.begin(), sums.begin(), std::plus<>{});
  }
  for (double& sum : sums) sum /= static_cast<double>(of.batches_per_epoch());
  return sums;
}

/// The share of `data`'s rows, whose last column is the class, that `logits` gets right.
inline double accuracy(const job& of, const columns& data, const std::function<torch::Tensor(const columns&)>& logits) {
  std::int64_t right = 0;
  for (const torch::Tensor& rows : torch::arange(data.front().size(0)).to(data.front().device()).split(of.batch)) {
    const columns batch = pick(of, data, rows);
    right += logits(batch).argmax(1).eq(batch.back()).sum().item<std::int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(data.front().size(0));
}

/// The job's score as a user computes it: modules in evaluation mode, no gradients, training mode afterwards.
inline double score(const job& of) {
  const torch::NoGradGuard no_gradients;
  of.training(false);
  const double found = of.score(of);
  of.training(true);
  return found;
}

namespace detail {

inline double rate(const job_options& o, double usual) { return o.learning_rate > 0 ? o.learning_rate : usual; }
inline std::int64_t chosen(std::int64_t asked, std::int64_t usual) { return asked > 0 ? asked : usual; }

/// The first `limit` rows of each; all where it is 0.
inline columns first_rows(columns data, std::int64_t limit) {
  for (torch::Tensor& column : data) {
    if (limit > 0) column = column.narrow(0, 0, std::min(limit, column.size(0)));
  }
  return data;
}

inline columns on_device(columns data, const torch::Device& device) {
  for (torch::Tensor& column : data) column = column.to(device);
  return data;
}

}  // namespace detail
}  // namespace torch_models
