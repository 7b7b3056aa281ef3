// SPDX-License-Identifier: Apache-2.0
// Graph convolutional network of two layers. Each mixes the features of a node's neighbours by the sparse, normalised
// adjacency matrix. An example is the whole graph: its values are those of the sparse features, so that dropout can
// apply to them.
// Source: Kipf and Welling 2017 (arXiv 1609.02907)
#pragma once

#include <comp_native/model_builder.hpp>
#include <cstdint>

namespace native_models {

using namespace comp::native;

struct gcn_options {
  sparse features = {};   // (nodes, features); examples bring the values
  sparse adjacency = {};  // (nodes, nodes): D^-1/2 (A + I) D^-1/2
  std::int64_t hidden = 16;
  std::int64_t classes = 7;
  double dropout = 0.5;
};

/// Reads (1, elements of the features). Its logits are (nodes, classes). Only the first layer has weight decay.
inline model gcn(const gcn_options& o) {
  model_builder net{"gcn", input_kind::values, {1, std::ssize(o.features->column)}};
  net.xavier_weights();
  const value hidden = net.input()
                           .dropout("layer1.dropout", o.dropout)
                           .sparse_linear("layer1.linear", o.features, o.hidden)
                           .spmm("layer1.propagate", o.adjacency);
  net.decay(false);
  hidden.relu("relu")
      .dropout("layer2.dropout", o.dropout)
      .linear("layer2.linear", o.classes, {.bias = false})
      .spmm("layer2.propagate", o.adjacency)
      .cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
