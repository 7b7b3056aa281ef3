// SPDX-License-Identifier: Apache-2.0
// Graph convolutional network in plain LibTorch. Each layer mixes the features of a node's neighbours by the sparse,
// normalised adjacency matrix. The matrix is COO, the only sparse layout for which LibTorch has the product and its
// backward on a CPU in FP32, BF16 and FP16.
// Source: Kipf and Welling 2017 (arXiv 1609.02907); their pygcn
#pragma once

#include <torch/nn/functional.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_models {

struct gcn_options {
  std::int64_t features = 1433;
  std::int64_t hidden = 16;
  std::int64_t classes = 7;
  std::int64_t layers = 2;
  double dropout = 0.5;
};

/// Dropout of a dense matrix's elements, or of a sparse one's values.
inline torch::Tensor drop_features(const torch::Tensor& x, double probability, bool training) {
  if (!x.is_sparse()) return torch::dropout(x, probability, training);
  const torch::Tensor kept = torch::dropout(x.values(), probability, training);
  return torch::sparse_coo_tensor(x.indices(), kept, x.sizes(), x.options(), /*is_coalesced=*/true);
}

/// The bias is added after the propagation, so that neighbours do not mix it.
struct graph_convolution_impl : torch::nn::Module {
  graph_convolution_impl(std::int64_t in, std::int64_t out) {
    weight = register_parameter("weight", torch::empty({in, out}));
    bias = register_parameter("bias", torch::zeros({out}));
    torch::nn::init::xavier_uniform_(weight);
  }

  /// (N,in) dense or sparse, (N,N) sparse -> (N,out)
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& adjacency) {
    return torch::mm(adjacency, torch::mm(x, weight)) + bias;
  }

  torch::Tensor weight, bias;
};
TORCH_MODULE_IMPL(graph_convolution, graph_convolution_impl);

struct gcn_impl : torch::nn::Module {
  explicit gcn_impl(const gcn_options& o) : options{o} {
    for (std::int64_t i = 0; i < o.layers; ++i) {
      const std::int64_t in = i == 0 ? o.features : o.hidden, out = i + 1 == o.layers ? o.classes : o.hidden;
      layers.push_back(register_module("layer" + std::to_string(i + 1), graph_convolution(in, out)));
    }
  }

  /// (N,features) dense or sparse, (N,N) sparse -> (N,classes), logits
  torch::Tensor forward(const torch::Tensor& features, const torch::Tensor& adjacency) {
    torch::Tensor x = layers.front()->forward(drop_features(features, options.dropout, is_training()), adjacency);
    for (std::size_t i = 1; i < layers.size(); ++i) {
      x = layers[i]->forward(torch::dropout(torch::relu(x), options.dropout, is_training()), adjacency);
    }
    return x;
  }

  gcn_options options;
  std::vector<graph_convolution> layers;
};
TORCH_MODULE_IMPL(gcn, gcn_impl);

}  // namespace torch_models
