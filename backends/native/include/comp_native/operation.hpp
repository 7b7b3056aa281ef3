// SPDX-License-Identifier: Apache-2.0
// The operators of a network as data: what each does beyond its inputs and parameters, and ATen's name for it.
// Not here: shapes (shape_rules.hpp), sizes and costs (costs.hpp), execution on a Device (execute.hpp).
#pragma once

#include <array>
#include <comp_native/device.hpp>
#include <cstdint>
#include <string_view>
#include <variant>

namespace comp::native {

/// One struct per kind of operator. Parameters are in the order that PyTorch lists them.
namespace op {
struct linear {  // x (...,K), weight (N,K)[, bias (N)] -> (...,N)
  std::int64_t units = 0;
  bool bias = true;
};
struct conv2d {  // x (B,C,H,W), weight (O,C/groups,R,S)[, bias (O)]
  std::int64_t channels = 0;
  std::array<std::int64_t, 2> kernel = {3, 3};
  conv2d_options options = {};
  bool bias = true;
};
struct batch_norm {  // x (B,C,H,W) or (B,C), weight (C), bias (C), running mean (C), running variance (C)
  double eps = 1e-5;
  double momentum = 0.1;
};
struct layer_norm {  // x (...,C), weight (C), bias (C)
  double eps = 1e-5;
};
struct activate {
  activation kind = activation::relu;
};
struct dropout {
  double p = 0.5;
};
struct max_pool2d {
  pool2d_options options = {};
};
struct avg_pool2d {
  pool2d_options options = {};
};
struct adaptive_avg_pool2d {
  std::array<std::int64_t, 2> size = {1, 1};
};
struct flatten {};  // (B,...) -> (B,product): a view
struct add {};
struct mul {};
struct embedding {  // weight (V,C); reads the batch's tokens (B,T), or their positions 0..T-1 -> (B,T,C)
  std::int64_t rows = 0;
  std::int64_t width = 0;
  bool of_positions = false;
};
struct bmm {  // alpha a b over the last two axes; heads split a (B,T,C) into (B,heads,T,C/heads) first, 0: as it is
  std::int64_t heads_a = 0;
  std::int64_t heads_b = 0;
  bool transpose_b = false;
  bool merge = false;  // (B,heads,T,D) -> (B,T,heads*D) afterwards
  double alpha = 1;
};
struct softmax {
  bool causal = false;
};
struct log_softmax {};
struct cross_entropy_loss {};  // x (...,V), labels of the batch (...): mean over labels that are not negative
struct nll_loss {};            // x (...,V) of log-probabilities
struct mse_loss {};            // x, target values of the batch, of one shape
}  // namespace op

using operation =
    std::variant<op::linear, op::conv2d, op::batch_norm, op::layer_norm, op::activate, op::dropout, op::max_pool2d,
                 op::avg_pool2d, op::adaptive_avg_pool2d, op::flatten, op::add, op::mul, op::embedding, op::bmm,
                 op::softmax, op::log_softmax, op::cross_entropy_loss, op::nll_loss, op::mse_loss>;

/// ATen's name of an operator.
constexpr std::string_view kind_of(const operation& what) {
  if (const auto* f = std::get_if<op::activate>(&what)) return traits(f->kind).name;
  constexpr std::string_view names[] = {
      "linear",    "conv2d",     "batch_norm", "layer_norm",          "activate",
      "dropout",   "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "flatten",
      "add",
      "aten::mul",  // Paddle's mul is another
      "embedding", "bmm",        "softmax",    "log_softmax",         "cross_entropy_loss",
      "nll_loss",  "mse_loss"};
  static_assert(std::size(names) == std::variant_size_v<operation>);
  return names[what.index()];
}

constexpr bool is_loss(const operation& what) {
  return std::holds_alternative<op::cross_entropy_loss>(what) || std::holds_alternative<op::nll_loss>(what) ||
         std::holds_alternative<op::mse_loss>(what);
}

/// A view moves no data: it has its producer's precision, and none of its own.
constexpr bool is_view(const operation& what) { return std::holds_alternative<op::flatten>(what); }

}  // namespace comp::native
