// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer over characters, like GPT-2: learned positions, pre-norm blocks, GELU, a final norm.
// Queries, keys and values are three linear operators, so that a plan can give each its precision. The head does not
// share the embedding's weights. Initial weights are N(0, 0.02), divided by sqrt(2 layers) at the end of a residual
// branch.
// Source: Radford et al. 2019
#pragma once

#include <cmath>
#include <comp_native/model_builder.hpp>
#include <cstdint>
#include <string>

namespace native_models {

using namespace comp::native;

struct gpt_options {
  std::int64_t batch = 16;
  std::int64_t vocabulary = 128;
  std::int64_t context = 64;  // [tokens]
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  double dropout = 0;
  bool one_attention = false;
};

namespace detail {
inline value optional_dropout(value x, const std::string& name, double p) { return p > 0 ? x.dropout(name, p) : x; }
/// Adds attention under `scope`: as one operator ("heads") with one precision, which a Device may compute in one call,
/// or as the four operators scores, softmax, dropout and context.
inline value attention(const std::string& scope, value query, value key, value values, const attention_options& o,
                       bool in_one) {
  if (in_one) return query.attention(scope + ".heads", key, values, o);
  const value weights = query.attention_scores(scope + ".scores", key, o.heads).softmax(scope + ".softmax", o.mask);
  return optional_dropout(weights, scope + ".dropout", o.dropout)
      .attention_context(scope + ".context", values, o.heads);
}

/// The two linear operators that end a residual branch have smaller initial weights, so that the residual sum does not
/// grow with the depth.
inline value gpt_block(model_builder& net, value x, const std::string& block, const gpt_options& o) {
  const double last = 0.02 / std::sqrt(2.0 * static_cast<double>(o.layers));
  const auto ends_branch = [&](value from, const std::string& name) {
    net.normal_weights(last);
    const value y = from.linear(name, o.width);
    net.normal_weights(0.02);
    return y;
  };
  const value normal = x.layer_norm(block + ".norm1");
  const value query = normal.linear(block + ".attention.query", o.width);
  const value key = normal.linear(block + ".attention.key", o.width);
  const value values = normal.linear(block + ".attention.value", o.width);
  const value context = attention(block + ".attention", query, key, values,
                                  {o.heads, op::softmax_mask::causal, o.dropout}, o.one_attention);
  const value attended = ends_branch(context, block + ".attention.projection");
  x = x.add(block + ".attention.residual",
            optional_dropout(attended, block + ".attention.projection_dropout", o.dropout));
  const value inner =
      x.layer_norm(block + ".norm2").linear(block + ".mlp.expand", 4 * o.width).gelu(block + ".mlp.gelu");
  const value shrunk = ends_branch(inner, block + ".mlp.shrink");
  return x.add(block + ".mlp.residual", optional_dropout(shrunk, block + ".mlp.dropout", o.dropout));
}
}  // namespace detail

/// Reads tokens (batch,context).
inline model gpt(const gpt_options& o) {
  model_builder net{"gpt", input_kind::tokens, {o.batch, o.context}};
  net.normal_weights(0.02);
  const value tokens = net.input().embedding("embedding.token", o.vocabulary, o.width);
  const value positions = net.input().embedding("embedding.position", o.context, o.width, op::looked_up::positions);
  value x = tokens.add("embedding.sum", positions);
  x = detail::optional_dropout(x, "embedding.dropout", o.dropout);
  for (std::int64_t i = 0; i < o.layers; ++i) x = detail::gpt_block(net, x, fmt::format("block{}", i), o);
  x.layer_norm("norm").linear("head", o.vocabulary, {.bias = false}).cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
