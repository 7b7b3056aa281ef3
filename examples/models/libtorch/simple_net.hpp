// SPDX-License-Identifier: Apache-2.0
// SimpleNet in plain LibTorch: nine linear layers of one size, one after another. On it Paddle's guide shows what mixed
// precision gains if a network has only matrix products and additions.
// Source: PaddlePaddle's guide on automatic mixed precision (input and output 8192 wide, batches of 2048 there)
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace torch_models {

struct simple_net_options {
  std::int64_t layers = 9;
  std::int64_t width = 8192;
};

struct simple_net_impl : torch::nn::Module {
  explicit simple_net_impl(const simple_net_options& o) {
    for (std::int64_t i = 0; i < o.layers; ++i) linears->push_back(torch::nn::Linear(o.width, o.width));
    register_module("linears", linears);
  }

  /// (B,width) -> (B,width)
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *linears) x = layer->as<torch::nn::Linear>()->forward(x);
    return x;
  }

  torch::nn::ModuleList linears;
};
TORCH_MODULE_IMPL(simple_net, simple_net_impl);

}  // namespace torch_models
