// SPDX-License-Identifier: Apache-2.0
// BERT with a span head, in plain LibTorch: it predicts where in a text the answer to a question begins and ends.
// Attention is LibTorch's scaled_dot_product_attention. By default there is no dropout in it, since its fused CPU
// kernel has none.
// Source: Devlin et al. 2019 (arXiv 1810.04805), including the initialisation
#pragma once

#include <torch/nn/functional.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_models {

struct bert_options {
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t vocabulary = 30522;
  std::int64_t positions = 512;
  double dropout = 0.1;
  double attention_dropout = 0.0;
};

/// 109 million parameters.
inline bert_options bert_base() { return {}; }
inline bert_options bert_small() { return {.layers = 4, .width = 256, .heads = 4}; }
inline bert_options bert_tiny() { return {.layers = 2, .width = 64, .heads = 2, .positions = 128}; }

struct bert_embeddings_impl : torch::nn::Module {
  explicit bert_embeddings_impl(const bert_options& o)
      : token{register_module("token", torch::nn::Embedding(o.vocabulary, o.width))},
        position{register_module("position", torch::nn::Embedding(o.positions, o.width))},
        segment{register_module("segment", torch::nn::Embedding(2, o.width))},
        norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width}).eps(1e-12)))},
        dropout{register_module("dropout", torch::nn::Dropout(o.dropout))} {}

  /// (B,T), (B,T) -> (B,T,width)
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& segments) {
    const torch::Tensor places = torch::arange(tokens.size(1), tokens.options());
    return dropout(norm(token(tokens) + segment(segments) + position(places)));
  }

  torch::nn::Embedding token, position, segment;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout dropout;
};
TORCH_MODULE_IMPL(bert_embeddings, bert_embeddings_impl);

struct bert_attention_impl : torch::nn::Module {
  explicit bert_attention_impl(const bert_options& o)
      : heads{o.heads},
        drop{o.attention_dropout},
        query{register_module("query", torch::nn::Linear(o.width, o.width))},
        key{register_module("key", torch::nn::Linear(o.width, o.width))},
        value{register_module("value", torch::nn::Linear(o.width, o.width))},
        output{register_module("output", torch::nn::Linear(o.width, o.width))} {}

  /// (B,T,width), (B,1,1,T) true where there is text -> (B,T,width)
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& text) {
    const auto split = [&](const torch::Tensor& y) { return y.unflatten(-1, {heads, -1}).transpose(1, 2); };
    const torch::Tensor mixed = torch::scaled_dot_product_attention(split(query(x)), split(key(x)), split(value(x)),
                                                                    text, is_training() ? drop : 0.0);
    return output(mixed.transpose(1, 2).flatten(2));
  }

  std::int64_t heads;
  double drop;
  torch::nn::Linear query, key, value, output;
};
TORCH_MODULE_IMPL(bert_attention, bert_attention_impl);

struct bert_block_impl : torch::nn::Module {
  explicit bert_block_impl(const bert_options& o)
      : attention{register_module("attention", bert_attention(o))},
        attention_norm{register_module("attention_norm", make_norm(o))},
        up{register_module("up", torch::nn::Linear(o.width, 4 * o.width))},
        down{register_module("down", torch::nn::Linear(4 * o.width, o.width))},
        norm{register_module("norm", make_norm(o))},
        dropout{register_module("dropout", torch::nn::Dropout(o.dropout))} {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& text) {
    const torch::Tensor y = attention_norm(x + dropout(attention->forward(x, text)));
    return norm(y + dropout(down(torch::gelu(up(y)))));
  }

  bert_attention attention;
  torch::nn::LayerNorm attention_norm;
  torch::nn::Linear up, down;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout dropout;

 private:
  static torch::nn::LayerNorm make_norm(const bert_options& o) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width}).eps(1e-12));
  }
};
TORCH_MODULE_IMPL(bert_block, bert_block_impl);

struct bert_for_spans_impl : torch::nn::Module {
  explicit bert_for_spans_impl(const bert_options& o)
      : embeddings{register_module("embeddings", bert_embeddings(o))},
        head{register_module("head", torch::nn::Linear(o.width, 2))} {
    for (std::int64_t i = 0; i < o.layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i + 1), bert_block(o)));
    }
    for (const auto& parameter : named_parameters()) {
      if (parameter.key().ends_with("bias")) torch::nn::init::zeros_(parameter.value());
      if (parameter.value().dim() == 2) torch::nn::init::normal_(parameter.value(), 0.0, 0.02);
    }
  }

  /// Tokens, segments (0 for the question, 1 for the text), and which tokens are no padding; each is (B,T).
  /// Returns: (B,2,T): the logits of the answer's first and last token. A question without an answer points to token 0.
  /// Padding has a logit so small that its softmax is 0.
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& segments, const torch::Tensor& text) {
    const torch::Tensor mask = text.unsqueeze(1).unsqueeze(1);
    torch::Tensor x = embeddings->forward(tokens, segments);
    for (auto& block : blocks) x = block->forward(x, mask);
    return head(x).transpose(1, 2).masked_fill(text.logical_not().unsqueeze(1), -1e4);
  }

  bert_embeddings embeddings;
  std::vector<bert_block> blocks;
  torch::nn::Linear head;
};
TORCH_MODULE_IMPL(bert_for_spans, bert_for_spans_impl);

}  // namespace torch_models
