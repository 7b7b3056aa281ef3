// SPDX-License-Identifier: Apache-2.0
// Graph attention network of two layers. Each edge has a coefficient for each head: the softmax of scores over the
// edges that enter a node. An example is the whole graph: its values are those of the sparse features, so that dropout
// can apply to them.
// Source: Velickovic et al. 2018 (arXiv 1710.10903), as trained on Cora: one head in the output layer
#pragma once

#include <comp_native/model_builder.hpp>
#include <cstdint>
#include <string>

namespace native_models {

using namespace comp::native;

struct gat_options {
  sparse features = {};  // (nodes, features); examples bring the values
  sparse edges = {};     // (nodes, nodes), including an edge from each node to itself; values are not read
  std::int64_t heads = 8;
  std::int64_t hidden = 8;  // features of each head
  std::int64_t classes = 7;
  double dropout = 0.6;  // for features and for coefficients
};

namespace detail {

/// h (nodes, heads * width) -> the same shape: each node's mean over its edges, weighted by attention.
inline value attend(value h, const std::string& layer, std::int64_t heads, const gat_options& o) {
  return h.edge_scores(layer + ".scores", o.edges, heads)
      .edge_softmax(layer + ".softmax", o.edges)
      .dropout(layer + ".share_dropout", o.dropout)
      .weighted_sum(layer + ".propagate", o.edges, h);
}

}  // namespace detail

/// Reads (1, elements of the features). Its logits are (nodes, classes).
inline model gat(const gat_options& o) {
  model_builder net{"gat", input_kind::values, {1, std::ssize(o.features->column)}};
  net.xavier_weights();
  const value first =
      net.input().dropout("first.dropout", o.dropout).sparse_linear("first.linear", o.features, o.heads * o.hidden);
  const value second = detail::attend(first, "first", o.heads, o)
                           .elu("elu")
                           .dropout("second.dropout", o.dropout)
                           .linear("second.linear", o.classes, {.bias = false});
  detail::attend(second, "second", 1, o).cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
