// SPDX-License-Identifier: Apache-2.0
// A training job in plain LibTorch: modules, optimizers, data in memory, the computation of a step, and the score of
// the result. Nothing here knows comp: train_step() is the loop that users have before they know it.
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

/// Tensors that have an example in each row: (B, ...) for B examples.
using columns = std::vector<torch::Tensor>;

struct job_options {
  std::filesystem::path data = {};     // the published folder or file; empty: made-up data of the same shapes
  std::string size = {};               // bert: base, small, tiny; gan: connected, convolutional; vgg16: plain
  std::filesystem::path weights = {};  // bert's pre-trained ones (bert_weights.hpp); empty: from scratch
  std::int64_t batch = 0;              // 0: the paper's
  std::int64_t limit = 0;              // how many training examples, from the first; 0: all
  std::int64_t side = 0;               // [pixels] of JPEG pictures (0: 64) and made-up images (0: 32)
  std::int64_t width = 0;              // the width of SimpleNet; 0: 1024 (the guide has 8192)
  std::int64_t steps_per_epoch = 10;   // for graphs: a step reads all the data
  double learning_rate = 0;            // 0: the job's own
  std::uint64_t seed = 1;              // for weights, made-up data, splits and dropout
  torch::Device device = torch::kCPU;
};

/// A part of a step with its own loss and optimizer. A GAN has two phases, the other jobs one.
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
  std::vector<phase> phases = {};  // the phases of each step, in order
  columns train = {}, validation = {};
  std::int64_t batch = 1;
  std::function<columns(columns)> collate = {};  // makes what the phases read from rows; empty: the rows themselves
  std::function<double(const job&)> score = {};  // the score on the validation data; higher is better
  std::string score_name = "accuracy";
  double clip_norm = 0;  // 0: gradients are not clipped

  std::int64_t examples() const { return train.front().size(0); }
  std::int64_t batches_per_epoch() const { return (examples() + batch - 1) / batch; }
  void training(bool on) const {
    for (const auto& [name, module] : modules) module->train(on);
  }
};

/// Returns: rows of `data` by number, after the job's collate.
inline columns pick(const job& of, const columns& data, const torch::Tensor& rows) {
  columns picked;
  for (const torch::Tensor& column : data) picked.push_back(column.index_select(0, rows));
  return of.collate ? of.collate(std::move(picked)) : picked;
}

inline void usual_update(torch::optim::Optimizer& optimizer) { optimizer.step(); }

/// Trains one step. forward(phase): runs the forward of a phase and returns its loss. Returns: the loss of each phase.
std::vector<double> train_step(job& of, auto forward, void (*update)(torch::optim::Optimizer&) = usual_update) {
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

/// Trains one step without comp and without mixed precision.
inline std::vector<double> train_step(job& of, const columns& batch) {
  return train_step(of, [&](const phase& part) { return part.loss(batch); });
}

/// Trains one shuffled epoch by train_step(). Returns: the mean loss of each phase.
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

/// Returns: the share of `data`'s rows whose class, which is the last column, has the largest logit.
inline double accuracy(const job& of, const columns& data, const std::function<torch::Tensor(const columns&)>& logits) {
  std::int64_t right = 0;
  for (const torch::Tensor& rows : torch::arange(data.front().size(0)).to(data.front().device()).split(of.batch)) {
    const columns batch = pick(of, data, rows);
    right += logits(batch).argmax(1).eq(batch.back()).sum().item<std::int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(data.front().size(0));
}

/// Returns: the job's score as a user computes it: with modules in evaluation mode and without gradients. The modules
/// are in training mode afterwards.
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

/// Returns: the first `limit` rows of each column; all if it is 0.
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
