// SPDX-License-Identifier: Apache-2.0
// The operators of graph networks as the trainer calls them: the products and sums along edges of sparse.hpp and
// graph_attention.hpp, together with their biases and weights. Gradients of weights are summed in FP32.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "batch_norm.hpp"
#include "elementwise.hpp"
#include "graph_attention.hpp"
#include "linear.hpp"
#include "sparse.hpp"

namespace comp::cuda {

namespace detail {

/// Adds the bias to each row of y, in place. Requires: nobody else holds y.
inline tensor biased(context& c, const tensor& y, parameter* b) {
  if (!b) return y;
  with_storage(y.precision(), [&]<class T>(std::type_identity<T>) {
    T* at = y.materialize_as<T>();
    add_bias<T>(c.stream().get(), at, b->value.materialize_as<float>(), at, y.shape()[0], y.shape()[1]);
  });
  return y;
}
inline void bias_gradient(context& c, const tensor& dy, parameter* b) {
  if (b && b->trainable) bias_gradient(c, dy, linear_sizes{dy.shape()[0], 0, dy.shape()[1]}, *b);
}
/// Adds the column sums of d, which is (rows,width) in FP32, to the gradient of p.
inline void add_rows(context& c, const tensor& d, std::int64_t rows, std::int64_t width, parameter& p) {
  const float* from = d.materialize_as<float>();
  const auto to = gradient_of(c, p);
  column_sums(c.stream().get(), from, to.at, rows, width, to.adds, c.scratch_of<float>(column_scratch(rows, width, 1)));
}

/// Index lists by which the kernels for edges also compute products and sums over nodes: each node is an edge of its
/// own. They are kept with the matrix.
struct node_lists {
  static constexpr std::int64_t chunk = 64;  // nodes that one partial sum adds
  indices counted;                           // 0 to N: the edge of a node, or the start of its list
  indices zeros;                             // (N): the one row of weights that every edge reads
  indices chunks;                            // 0, 64, 128, ... N: the starts of the lists of partial sums
  std::int64_t pieces = 0;                   // how many partial sums there are; 0 before the lists are made

  void make(context& c, std::int64_t nodes) {
    if (pieces > 0) return;
    std::vector<std::int32_t> all(static_cast<std::size_t>(nodes) + 1), begins;
    std::iota(all.begin(), all.end(), 0);
    for (std::int64_t at = 0; at < nodes; at += chunk) begins.push_back(static_cast<std::int32_t>(at));
    begins.push_back(static_cast<std::int32_t>(nodes));
    counted = upload(c, all, {nodes + 1});
    zeros = upload(c, std::vector<std::int32_t>(static_cast<std::size_t>(nodes)), {nodes});
    chunks = upload(c, begins, {std::ssize(begins)});
    pieces = std::ssize(begins) - 1;  // last, so that lists whose upload failed are made again
  }
};
inline node_lists& lists_of(context& c, const csr& m) {
  auto& lists = m.part<node_lists>();
  lists.make(c, m.rows());
  return lists;
}

/// Returns: (N,H) in FP32: the dot product of each head of x, which is (N,H*D) in FP32, with that of w (1,H,D).
inline tensor head_products(context& c, const node_lists& lists, const tensor& x, parameter& w) {
  const std::int64_t nodes = x.shape()[0], heads = w.extents[1];
  const tensor y = c.make({nodes, heads}, precision::fp32);
  edge_products<float>(c.stream().get(), x.materialize_as<float>(), w.value.materialize_as<float>(),
                       lists.counted.data(), lists.zeros.data(), y.materialize_as<float>(), nodes, heads, w.extents[2]);
  return y;
}
/// Adds the gradient of w. Returns: the gradient of x in FP32.
inline tensor head_products_backward(context& c, const node_lists& lists, const tensor& d, const tensor& x,
                                     parameter& w) {
  const std::int64_t nodes = x.shape()[0], heads = w.extents[1], width = w.extents[2];
  if (w.trainable) {
    const tensor sums = c.make({lists.pieces, heads * width}, precision::fp32);
    weighted_sums<float>(c.stream().get(), d.materialize_as<float>(), x.materialize_as<float>(), lists.chunks.data(),
                         lists.counted.data(), nullptr, sums.materialize_as<float>(), lists.pieces, heads, width);
    add_rows(c, sums, lists.pieces, heads * width, w);
  }
  const tensor dx = c.make(x.shape(), precision::fp32);
  weighted_sums<float>(c.stream().get(), d.materialize_as<float>(), w.value.materialize_as<float>(),
                       lists.counted.data(), lists.zeros.data(), nullptr, dx.materialize_as<float>(), nodes, heads,
                       width);
  return dx;
}

}  // namespace detail

/// values is (1,E), w is (K,U). Returns: (N,U).
inline tensor sparse_linear(context& c, const csr& m, const tensor& values, parameter& w) {
  const precision p = values.precision();
  return weighted_sum(c, m, reshape(c, values, {m.elements(), 1}), weight_tensor(c, w, p));
}
/// Adds the gradient of w. Returns: the gradient of the values; empty unless `need_dx`.
inline tensor sparse_linear_backward(context& c, const csr& m, const tensor& dy, const tensor& values, parameter& w,
                                     bool need_dx) {
  const tensor share = reshape(c, values, {m.elements(), 1}), g = row_major(c, dy);
  if (w.trainable) {
    const tensor dw =
        detail::sums_along(c, m.by_column(), m.columns(), cast(c, share, precision::fp32), cast(c, g, precision::fp32));
    detail::add_rows(c, dw, 1, elements(w.extents), w);
  }
  if (!need_dx) return {};
  const auto at = weight_tensor(c, w, dy.precision());
  return reshape(c, weighted_sum_backward(c, m, g, cast(c, share, dy.precision()), at).share, values.shape());
}

/// x is (M,K), b is (K) or null. Returns: (N,K).
inline tensor spmm(context& c, const csr& m, const tensor& x, parameter* b) {
  return detail::biased(c, spmm(c, m, row_major(c, x)), b);
}
inline tensor spmm_backward(context& c, const csr& m, const tensor& dy, parameter* b, bool need_dx) {
  const tensor g = row_major(c, dy);
  detail::bias_gradient(c, g, b);
  return need_dx ? spmm_backward(c, m, g) : tensor{};
}

/// x is (N,H*D), source and target are (1,H,D). Returns: (E,H). saved: each node's terms as source and as target, in
/// FP32, of which an edge's score is the sum.
inline saved_tensor edge_scores(context& c, const csr& m, const tensor& x, parameter& source, parameter& target,
                                double slope) {
  const auto& lists = detail::lists_of(c, m);
  const tensor in = cast(c, row_major(c, x), precision::fp32);
  const tensor from = detail::head_products(c, lists, in, source), to = detail::head_products(c, lists, in, target);
  return {cast(c, edge_scores(c, m, to, from, slope), x.precision()), {from, to}};
}
/// Adds the gradients of source and target. Returns: the gradient of x.
inline tensor edge_scores_backward(context& c, const csr& m, const tensor& dy, const tensor& x,
                                   const std::vector<tensor>& saved, parameter& source, parameter& target,
                                   double slope) {
  const auto& lists = detail::lists_of(c, m);
  const tensor in = cast(c, row_major(c, x), precision::fp32);
  const auto [d_to, d_from] =
      edge_scores_backward(c, m, cast(c, row_major(c, dy), precision::fp32), saved[1], saved[0], slope);
  const tensor both[] = {detail::head_products_backward(c, lists, d_from, in, source),
                         detail::head_products_backward(c, lists, d_to, in, target)};
  return cast(c, sum(c, both), dy.precision());
}

/// share is (E,H), x is (M,H*D), b is (H*D) or null. Returns: (N,H*D).
inline tensor weighted_sum(context& c, const csr& m, const tensor& share, const tensor& x, parameter* b) {
  return detail::biased(c, weighted_sum(c, m, row_major(c, share), row_major(c, x)), b);
}
/// Adds the gradient of b. Returns: the gradients of share and x.
inline std::array<tensor, 2> weighted_sum_backward(context& c, const csr& m, const tensor& dy, const tensor& share,
                                                   const tensor& x, parameter* b) {
  const tensor g = row_major(c, dy);
  detail::bias_gradient(c, g, b);
  auto [d_share, dx] = weighted_sum_backward(c, m, g, share, x);
  return {std::move(d_share), std::move(dx)};
}

}  // namespace comp::cuda
