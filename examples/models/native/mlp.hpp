// SPDX-License-Identifier: Apache-2.0
// The multilayer perceptron: linear layers with ReLU or tanh between them.
#pragma once

#include <comp_native/model_builder.hpp>
#include <cstdint>
#include <vector>

namespace native_models {

using namespace comp::native;

struct mlp_options {
  std::int64_t batch = 64;
  shape input = {784};  // the shape of one example, which is flattened
  std::vector<std::int64_t> hidden = {256, 128};
  std::int64_t outputs = 10;
  comp::native::activation activation = comp::native::activation::relu;
  bool regression = false;  // true: mean squared error instead of cross-entropy
};

inline model mlp(const mlp_options& o) {
  shape input{o.batch};
  input.insert(input.end(), o.input.begin(), o.input.end());
  model_builder net{"mlp", input_kind::values, input};
  value x = net.input();
  if (o.input.size() > 1) x = x.flatten("flatten");
  for (std::size_t i = 0; i < o.hidden.size(); ++i) {
    x = x.linear(fmt::format("layer{}.linear", i), o.hidden[i]);
    x = x.activate(fmt::format("layer{}.{}", i, traits(o.activation).name), o.activation);
  }
  x = x.linear("head", o.outputs);
  o.regression ? x.mse_loss("loss") : x.cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
