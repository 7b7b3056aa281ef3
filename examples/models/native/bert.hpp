// SPDX-License-Identifier: Apache-2.0
// BERT with a span head: it predicts where in a text the answer to a question begins and ends. Names and sizes are
// those of models/libtorch/bert.hpp.
// Source: Devlin et al. 2019 (arXiv 1810.04805), including the initialisation
#pragma once

#include <comp_native/model_builder.hpp>
#include <cstdint>
#include <examples/models/native/gpt.hpp>
#include <string>

namespace native_models {

struct bert_options {
  std::int64_t batch = 16;
  std::int64_t length = 192;  // [tokens]
  std::int64_t layers = 4;
  std::int64_t width = 256;
  std::int64_t heads = 4;
  std::int64_t vocabulary = 30522;
  std::int64_t positions = 512;
  double dropout = 0.1;
  double attention_dropout = 0;
  bool one_attention = false;
};

/// 109 million parameters.
inline bert_options bert_base() { return {.length = 384, .layers = 12, .width = 768, .heads = 12}; }
inline bert_options bert_small() { return {}; }
inline bert_options bert_tiny() { return {.length = 64, .layers = 2, .width = 64, .heads = 2, .positions = 128}; }

namespace detail {

inline value bert_block(value x, const std::string& block, const bert_options& o) {
  constexpr op::layer_norm norm{.eps = 1e-12};
  const std::string attention = block + ".attention";
  const value query = x.linear(attention + ".query", o.width), key = x.linear(attention + ".key", o.width),
              values = x.linear(attention + ".value", o.width);
  const value mixed = detail::attention(attention, query, key, values,
                                        {o.heads, op::softmax_mask::padding, o.attention_dropout}, o.one_attention)
                          .linear(attention + ".output", o.width);
  const value y = x.add(attention + "_residual", optional_dropout(mixed, attention + "_dropout", o.dropout))
                      .layer_norm(attention + "_norm", norm);
  const value down = y.linear(block + ".up", 4 * o.width).gelu(block + ".gelu").linear(block + ".down", o.width);
  return y.add(block + ".residual", optional_dropout(down, block + ".dropout", o.dropout))
      .layer_norm(block + ".norm", norm);
}

}  // namespace detail

/// Reads tokens and segments (batch,2,length), with two labels: the answer's first and last token. The operator "spans"
/// returns their logits (batch,2,length).
inline model bert(const bert_options& o) {
  model_builder net{"bert", input_kind::tokens, {o.batch, 2, o.length}};
  net.normal_weights(0.02);
  const value input = net.input();
  const value x =
      input.embedding("embeddings.token", o.vocabulary, o.width)
          .add("embeddings.with_segment", input.embedding("embeddings.segment", 2, o.width, op::looked_up::segments))
          .add("embeddings.with_position",
               input.embedding("embeddings.position", o.positions, o.width, op::looked_up::positions))
          .layer_norm("embeddings.norm", {.eps = 1e-12});
  value y = detail::optional_dropout(x, "embeddings.dropout", o.dropout);
  for (std::int64_t i = 1; i <= o.layers; ++i) y = detail::bert_block(y, fmt::format("block{}", i), o);
  y.linear("head", 2).masked_columns("spans").cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
