// SPDX-License-Identifier: Apache-2.0
// Graph attention along the edges of a graph, for several heads, with gradients: a score for each edge, the softmax of
// the scores over the edges that enter a node, and sums of neighbours weighted by it. Sums are FP32 and have one fixed
// order. The graph is (N,M) with E edges; tensors of edges are (E,H), tensors of nodes (N,H) or (N,H*D).
// A user calls, for instance, edge_scores(d.shared(), graph, target, source) for a `device` d.
// Source: Velickovic et al. 2018 (arXiv 1710.10903)
#pragma once

#include <comp_native/op/graph.hpp>

#include "csr.hpp"

namespace comp::cuda {

namespace detail {

/// Returns: for each line of a side the sum over its edges of share times the row of x at the edge's other end.
inline tensor sums_along(context& c, const csr_side& side, std::int64_t lines, const tensor& share, const tensor& x) {
  const std::int64_t heads = share.shape()[1], features = x.shape()[1];
  const tensor y = c.make({lines, features}, x.precision());
  with_storage(x.precision(), [&]<class T>(std::type_identity<T>) {
    weighted_sums<T>(c.stream().get(), share.materialize_as<T>(), x.materialize_as<T>(), side.begin.data(),
                     side.other.data(), side.edge.data(), y.materialize_as<T>(), lines, heads, features / heads);
  });
  return y;
}
/// Returns: the gradient of the terms of a side's nodes. own: those terms; other: the terms at the edges' other ends.
inline tensor score_gradient(context& c, const csr_side& side, const tensor& dy, const tensor& own, const tensor& other,
                             double slope) {
  const tensor d = c.make(own.shape(), dy.precision());
  with_storage(dy.precision(), [&]<class T>(std::type_identity<T>) {
    edge_scores_backward<T>(c.stream().get(), dy.materialize_as<T>(), own.materialize_as<T>(),
                            other.materialize_as<T>(), side.begin.data(), side.other.data(), side.edge.data(),
                            d.materialize_as<T>(), own.shape()[0], own.shape()[1], static_cast<float>(slope));
  });
  return d;
}

}  // namespace detail

/// target is (N,H), source is (M,H). Returns: (E,H): leaky_relu(target[row] + source[column]).
inline tensor edge_scores(context& c, const csr& m, const tensor& target, const tensor& source, double slope = 0.2) {
  native::require_nodes("edge_scores", "target", target.shape(), m.rows());
  native::require_nodes("edge_scores", "source", source.shape(), m.columns());
  require<error>(target.shape()[1] == source.shape()[1],
                 "edge_scores of {} and {} (they must have as many heads): make the second sizes equal",
                 text(target.shape()), text(source.shape()));
  const tensor from = cast(c, source, target.precision());
  const tensor y = c.make({m.elements(), target.shape()[1]}, target.precision());
  with_storage(y.precision(), [&]<class T>(std::type_identity<T>) {
    edge_scores<T>(c.stream().get(), target.materialize_as<T>(), from.materialize_as<T>(), m.row().data(),
                   m.column().data(), y.materialize_as<T>(), m.elements(), target.shape()[1],
                   static_cast<float>(slope));
  });
  return y;
}
struct edge_scores_gradient {
  tensor target, source;
};
inline edge_scores_gradient edge_scores_backward(context& c, const csr& m, const tensor& dy, const tensor& target,
                                                 const tensor& source, double slope = 0.2) {
  native::require_edges("edge_scores_backward", m.elements(), dy.shape());
  native::require_nodes("edge_scores_backward", "target", target.shape(), m.rows());
  native::require_nodes("edge_scores_backward", "source", source.shape(), m.columns());
  const tensor to = cast(c, target, dy.precision()), from = cast(c, source, dy.precision());
  return {detail::score_gradient(c, m.by_row(), dy, to, from, slope),
          detail::score_gradient(c, m.by_column(), dy, from, to, slope)};
}

/// x is (E,H). Returns: (E,H): its softmax over the edges that enter each node, for each head.
inline tensor edge_softmax(context& c, const csr& m, const tensor& x) {
  native::require_edges("edge_softmax", m.elements(), x.shape());
  const tensor y = c.make_like(x);
  with_storage(x.precision(), [&]<class T>(std::type_identity<T>) {
    edge_softmax<T>(c.stream().get(), x.materialize_as<T>(), m.by_row().begin.data(), y.materialize_as<T>(), m.rows(),
                    x.shape()[1]);
  });
  return y;
}
inline tensor edge_softmax_backward(context& c, const csr& m, const tensor& dy, const tensor& y) {
  require_same("edge_softmax_backward", dy.shape(), y.shape());
  native::require_edges("edge_softmax_backward", m.elements(), dy.shape());
  const tensor at = cast(c, y, dy.precision()), dx = c.make_like(dy);
  with_storage(dy.precision(), [&]<class T>(std::type_identity<T>) {
    edge_softmax_backward<T>(c.stream().get(), dy.materialize_as<T>(), at.materialize_as<T>(), m.by_row().begin.data(),
                             dx.materialize_as<T>(), m.rows(), dy.shape()[1]);
  });
  return dx;
}

/// share is (E,H), x is (M,H*D). Returns: (N,H*D): for each head the sum of share * x[column] over the edges that enter
/// a node.
inline tensor weighted_sum(context& c, const csr& m, const tensor& share, const tensor& x) {
  native::require_edges("weighted_sum", m.elements(), share.shape());
  native::require_nodes("weighted_sum", "x", x.shape(), m.columns());
  native::require_heads("weighted_sum", share.shape(), x.shape());
  return detail::sums_along(c, m.by_row(), m.rows(), share, cast(c, x, share.precision()));
}
struct weighted_sum_gradient {
  tensor share, x;
};
inline weighted_sum_gradient weighted_sum_backward(context& c, const csr& m, const tensor& dy, const tensor& share,
                                                   const tensor& x) {
  native::require_edges("weighted_sum_backward", m.elements(), share.shape());
  native::require_nodes("weighted_sum_backward", "dy", dy.shape(), m.rows());
  native::require_nodes("weighted_sum_backward", "x", x.shape(), m.columns());
  native::require_heads("weighted_sum_backward", share.shape(), dy.shape());
  const tensor from = cast(c, x, dy.precision()), d_share = c.make(share.shape(), dy.precision());
  const std::int64_t heads = share.shape()[1];
  with_storage(dy.precision(), [&]<class T>(std::type_identity<T>) {
    edge_products<T>(c.stream().get(), dy.materialize_as<T>(), from.materialize_as<T>(), m.row().data(),
                     m.column().data(), d_share.materialize_as<T>(), m.elements(), heads, dy.shape()[1] / heads);
  });
  return {d_share, detail::sums_along(c, m.by_column(), m.columns(), cast(c, share, dy.precision()), dy)};
}

}  // namespace comp::cuda
