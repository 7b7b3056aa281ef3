// SPDX-License-Identifier: Apache-2.0
// comp_native's gpt in LibTorch: the same operators, shapes and initial deviations, attention through LibTorch's own
// fused operator.
#pragma once

#include <torch/nn.h>

#include <examples/models/native/gpt.hpp>
#include <string>
#include <vector>

namespace bench {

struct gpt_impl : torch::nn::Module {
  struct block {
    torch::nn::LayerNorm norm1, norm2;
    torch::nn::Linear query, key, values, projection, expand, shrink;
  };

  explicit gpt_impl(const native_models::gpt_options& o)
      : options{o},
        token{register_module("token", torch::nn::Embedding(o.vocabulary, o.width))},
        position{register_module("position", torch::nn::Embedding(o.context, o.width))},
        norm{register_module("norm", make_norm())},
        head{register_module("head", torch::nn::Linear(torch::nn::LinearOptions(o.width, o.vocabulary).bias(false)))} {
    for (std::int64_t i = 0; i < o.layers; ++i) {
      const std::string name = "block" + std::to_string(i) + "_";
      const auto linear = [&](const char* of, std::int64_t in, std::int64_t out) {
        return register_module(name + of, torch::nn::Linear(in, out));
      };
      blocks.push_back({register_module(name + "norm1", make_norm()), register_module(name + "norm2", make_norm()),
                        linear("query", o.width, o.width), linear("key", o.width, o.width),
                        linear("values", o.width, o.width), linear("projection", o.width, o.width),
                        linear("expand", o.width, 4 * o.width), linear("shrink", 4 * o.width, o.width)});
    }
    for (const auto& p : named_parameters()) {
      if (p.value().dim() == 2) torch::nn::init::normal_(p.value(), 0.0, 0.02);
      if (p.key().ends_with("bias")) torch::nn::init::zeros_(p.value());
    }
  }

  /// (B,T) -> (B,T,vocabulary)
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = token(tokens) + position(torch::arange(options.context));
    for (block& b : blocks) {
      const torch::Tensor y = b.norm1(x);
      const torch::Tensor mixed = torch::scaled_dot_product_attention(split(b.query(y)), split(b.key(y)),
                                                                      split(b.values(y)), {}, 0.0, /*is_causal=*/true);
      x = x + b.projection(mixed.transpose(1, 2).flatten(2));
      x = x + b.shrink(torch::gelu(b.expand(b.norm2(x))));
    }
    return head(norm(x));
  }

  native_models::gpt_options options;
  torch::nn::Embedding token, position;
  std::vector<block> blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;

 private:
  torch::nn::LayerNorm make_norm() const { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})); }
  torch::Tensor split(const torch::Tensor& y) const { return y.unflatten(-1, {options.heads, -1}).transpose(1, 2); }
};
TORCH_MODULE_IMPL(gpt, gpt_impl);

}  // namespace bench
