// SPDX-License-Identifier: Apache-2.0
// SimpleNet on random numbers, since only its time is measured.
// Source: PaddlePaddle's guide on automatic mixed precision (ten batches of 2048, 8192 wide; smaller here by default)
#pragma once

#include <fmt/format.h>

#include <libtorch/job.hpp>
#include <libtorch/simple_net.hpp>

namespace torch_models {

inline job simple_net_job(const job_options& o) {
  torch::manual_seed(o.seed);
  const simple_net_options shape{.width = detail::chosen(o.width, 1024)};
  const std::int64_t batch = detail::chosen(o.batch, 256), examples = detail::chosen(o.limit, 10 * batch);
  simple_net net(shape);
  net->to(o.device);
  const auto random = [&](std::int64_t rows) {
    return detail::on_device({torch::rand({rows, shape.width}), torch::rand({rows, shape.width})}, o.device);
  };
  job task{.name = "simplenet",
           .description = fmt::format("simplenet of {} layers, width {}, on {} rows of random numbers", shape.layers,
                                      shape.width, examples),
           .modules = {{"net", net.ptr()}},
           .train = random(examples),
           .validation = random(batch),
           .batch = batch,
           .score_name = "minus loss"};
  task.optimizers = {
      std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(detail::rate(o, 1e-4)))};
  task.phases = {
      {"forward", [net](const columns& rows) mutable { return torch::mse_loss(net->forward(rows[0]), rows[1]); }}};
  task.score = [net](const job& of) mutable {
    return -torch::mse_loss(net->forward(of.validation[0]), of.validation[1]).item<double>();
  };
  return task;
}

}  // namespace torch_models
