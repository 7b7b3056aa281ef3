// SPDX-License-Identifier: Apache-2.0
// Graph attention network in plain LibTorch. Each edge has a coefficient for each head: the softmax of scores over the
// edges that enter a node. Messages go along edges only, so that memory grows with the edges and not with the square of
// the nodes.
// Source: Velickovic et al. 2018 (arXiv 1710.10903)
#pragma once

#include <libtorch/gcn.hpp>

namespace torch_models {

struct gat_options {
  std::int64_t features = 1433;
  std::int64_t heads = 8;
  std::int64_t hidden = 8;  // features of each head
  std::int64_t classes = 7;
  std::int64_t output_heads = 1;
  double dropout = 0.6;  // for features and for coefficients
};

/// The edges of a graph, including an edge from each node to itself. Both tensors are (E) and have numbers of nodes.
struct edge_list {
  torch::Tensor source, target;
};

/// Softmax over the edges that enter each target: (E,H) -> (E,H)
inline torch::Tensor edge_softmax(const torch::Tensor& scores, const torch::Tensor& target, std::int64_t nodes) {
  const std::vector<std::int64_t> shape{nodes, scores.size(1)};
  const torch::Tensor at = target.unsqueeze(1).expand_as(scores);
  const torch::Tensor largest =
      torch::full(shape, -1e4, scores.options()).scatter_reduce(0, at, scores.detach(), "amax");  // -1e4 fits FP16
  const torch::Tensor powers = torch::exp(scores - largest.index_select(0, target));
  const torch::Tensor sums = torch::zeros(shape, powers.options()).index_add(0, target, powers);
  return powers / sums.index_select(0, target);
}

struct graph_attention_impl : torch::nn::Module {
  graph_attention_impl(std::int64_t in, std::int64_t out, std::int64_t head_count, bool concatenate, double drop)
      : heads{head_count}, width{out}, concatenates{concatenate}, dropout{drop} {
    weight = register_parameter("weight", torch::empty({in, heads * out}));
    as_source = register_parameter("as_source", torch::empty({1, heads, out}));
    as_target = register_parameter("as_target", torch::empty({1, heads, out}));
    bias = register_parameter("bias", torch::zeros({concatenate ? heads * out : out}));
    for (torch::Tensor* tensor : {&weight, &as_source, &as_target}) torch::nn::init::xavier_uniform_(*tensor);
  }

  /// (N,in) dense or sparse -> (N,heads*out), or (N,out) if the layer averages its heads
  torch::Tensor forward(const torch::Tensor& x, const edge_list& edges) {
    const std::int64_t nodes = x.size(0);
    const torch::Tensor h = torch::mm(x, weight).view({nodes, heads, width});
    const torch::Tensor from = (h * as_source).sum(-1), to = (h * as_target).sum(-1);
    const torch::Tensor scores =
        torch::leaky_relu(from.index_select(0, edges.source) + to.index_select(0, edges.target), 0.2);
    const torch::Tensor share =
        torch::dropout(edge_softmax(scores, edges.target, nodes), dropout, is_training()).unsqueeze(-1);
    const torch::Tensor messages = (h.index_select(0, edges.source) * share).flatten(1);
    const torch::Tensor y =
        torch::zeros({nodes, heads * width}, messages.options()).index_add(0, edges.target, messages);
    return (concatenates ? y : y.view({nodes, heads, width}).mean(1)) + bias;
  }

  std::int64_t heads, width;
  bool concatenates;
  double dropout;
  torch::Tensor weight, as_source, as_target, bias;
};
TORCH_MODULE_IMPL(graph_attention, graph_attention_impl);

struct gat_impl : torch::nn::Module {
  explicit gat_impl(const gat_options& o)
      : options{o},
        first{register_module("first", graph_attention(o.features, o.hidden, o.heads, true, o.dropout))},
        second{register_module("second",
                               graph_attention(o.heads * o.hidden, o.classes, o.output_heads, false, o.dropout))} {}

  /// (N,features) dense or sparse -> (N,classes), logits
  torch::Tensor forward(const torch::Tensor& features, const edge_list& edges) {
    const torch::Tensor x = first->forward(drop_features(features, options.dropout, is_training()), edges);
    return second->forward(torch::dropout(torch::elu(x), options.dropout, is_training()), edges);
  }

  gat_options options;
  graph_attention first, second;
};
TORCH_MODULE_IMPL(gat, gat_impl);

}  // namespace torch_models
