// SPDX-License-Identifier: Apache-2.0
// The operators of networks on graphs. A graph is a sparse matrix (N,M) with E elements that the operator holds and
// that is the same in every step. Element (row, column) is the edge that enters node `row` and comes from node
// `column`. Tensors of edges are (E,H) for H heads, in the order of the matrix; tensors of nodes have a row for each
// node.
#pragma once

#include <comp_native/host_csr.hpp>
#include <comp_native/op/call.hpp>
#include <memory>

namespace comp::native {

/// These three throw: error.
inline void require_edges(const char* operation, std::int64_t edges, const shape& t) {
  require<error>(t.size() == 2 && t[0] == edges,
                 "{} of {} on a graph of {} edges (there is a row for each edge): make it ({},H)", operation, text(t),
                 edges, edges);
}
inline void require_nodes(const char* operation, const char* what, const shape& t, std::int64_t nodes) {
  require<error>(t.size() == 2 && t[0] == nodes && t[1] > 0,
                 "{} of a {} of {} on a graph of {} nodes (there is a row for each): make it ({},K)", operation, what,
                 text(t), nodes, nodes);
}
inline void require_heads(const char* operation, const shape& share, const shape& x) {
  require<error>(share[1] > 0 && x[1] % share[1] == 0,
                 "{} of x {} by shares {} (the features are divided among the heads): use a multiple of {}", operation,
                 text(x), text(share), share[1]);
}

namespace op {

/// The base of operators that hold a matrix.
struct of_graph {
  std::shared_ptr<const host_csr> matrix = {};

 protected:
  std::int64_t edges() const { return std::ssize(matrix->column); }
  /// Counts `multiplications` for each edge, and the two numbers of the edge that are read (its column and its value).
  void along_edges(const cost_call& c, std::int64_t multiplications) const {
    c.info.flops = 2 * edges() * multiplications;
    c.info.bytes += 8 * edges();
  }
};

struct sparse_linear : of_graph {  // x (1,E): the values of the matrix (N,K); weight (K,units) -> (N,units)
  std::int64_t units = 0;

  std::string_view kind() const { return "mm"; }
  shape output(std::span<const shape> x) const {
    require<error>(units > 0, "sparse_linear with {} units (at least one): change it", units);
    require<error>(x[0] == shape{1, edges()},
                   "sparse_linear of x {} on a matrix of {} elements (it takes their values): make it (1,{})",
                   text(x[0]), edges(), edges());
    return {matrix->rows, units};
  }
  void cost(const cost_call& c) const {
    c.matrix(1, matrix->rows, units, matrix->columns);
    along_edges(c, units);
  }
  auto forward(const auto& c) const { return c.device.sparse_linear(*c.matrix, c.keep(c.x[0]), *c.parameters[0]); }
  auto backward(const auto& c) const {
    return c.gradients(c.device.sparse_linear_backward(*c.matrix, c.dy, c.kept(0), *c.parameters[0], c.need[0]));
  }
};

struct spmm : of_graph {  // matrix (N,M) by x (M,K)[, bias (K)] -> (N,K)
  bool bias = true;

  std::string_view kind() const { return "mm"; }
  shape output(std::span<const shape> x) const {
    require_nodes("spmm", "x", x[0], matrix->columns);
    return {matrix->rows, x[0][1]};
  }
  void cost(const cost_call& c) const {
    c.matrix(1, matrix->rows, c.output[1], matrix->columns);
    along_edges(c, c.output[1]);
    if (bias) c.info.flops += elements(c.output);
  }
  auto forward(const auto& c) const {
    return c.device.spmm(*c.matrix, c.x[0], c.parameters.empty() ? nullptr : c.parameters[0]);
  }
  auto backward(const auto& c) const {
    return c.gradients(
        c.device.spmm_backward(*c.matrix, c.dy, c.parameters.empty() ? nullptr : c.parameters[0], c.need[0]));
  }
};

/// The scores of graph attention: leaky_relu(target . x[row] + source . x[column]) for each edge and head.
struct edge_scores : of_graph {  // x (N,H*D), source (1,H,D), target (1,H,D) -> (E,H)
  std::int64_t heads = 1;
  double slope = 0.2;

  std::string_view kind() const { return "edge_scores"; }
  constexpr auto settings() const { return std::tuple{slope}; }
  shape output(std::span<const shape> x) const {
    require<error>(matrix->rows == matrix->columns,
                   "edge_scores on a graph of {} and {} nodes (both ends are x's): use a square matrix", matrix->rows,
                   matrix->columns);
    require<error>(edges() > 0,
                   "edge_scores on a graph of {} edges (there is nothing to attend to): give each node one "
                   "to itself",
                   edges());
    require_nodes("edge_scores", "x", x[0], matrix->columns);
    require_heads("edge_scores", {edges(), heads}, x[0]);
    return {edges(), heads};
  }
  void cost(const cost_call& c) const {
    along_edges(c, heads);
    c.info.flops += 4 * elements(c.inputs[0]);
  }
  auto forward(const auto& c) const {
    return c.keep_with_input(c.device.edge_scores(*c.matrix, c.x[0], *c.parameters[0], *c.parameters[1], slope));
  }
  auto backward(const auto& c) const {
    const auto x = c.take_input();
    return c.gradients(
        c.device.edge_scores_backward(*c.matrix, c.dy, x, c.left.kept, *c.parameters[0], *c.parameters[1], slope));
  }
};

struct edge_softmax : of_graph {  // over the edges that enter each node: (E,H) -> (E,H)
  std::string_view kind() const { return "softmax"; }
  shape output(std::span<const shape> x) const { return require_edges("edge_softmax", edges(), x[0]), x[0]; }
  void cost(const cost_call& c) const { c.per_element(5); }
  auto forward(const auto& c) const { return c.keep(c.device.edge_softmax(*c.matrix, c.x[0])); }
  auto backward(const auto& c) const { return c.gradients(c.device.edge_softmax_backward(*c.matrix, c.dy, c.kept(0))); }
};

/// The sum of share * x[column] over the edges that enter a node, for each node and head.
struct weighted_sum : of_graph {  // share (E,H), x (M,H*D)[, bias (H*D)] -> (N,H*D)
  bool bias = true;

  std::string_view kind() const { return "index_add"; }
  shape output(std::span<const shape> x) const {
    require_edges("weighted_sum", edges(), x[0]);
    require_nodes("weighted_sum", "x", x[1], matrix->columns);
    require_heads("weighted_sum", x[0], x[1]);
    return {matrix->rows, x[1][1]};
  }
  void cost(const cost_call& c) const { along_edges(c, c.output[1]); }
  auto forward(const auto& c) const {
    c.left.kept = {c.x[0], c.x[1]};
    return c.device.weighted_sum(*c.matrix, c.x[0], c.x[1], c.parameters.empty() ? nullptr : c.parameters[0]);
  }
  auto backward(const auto& c) const {
    auto [share, x] = c.device.weighted_sum_backward(*c.matrix, c.dy, c.kept(0), c.kept(1),
                                                     c.parameters.empty() ? nullptr : c.parameters[0]);
    return c.gradients(std::move(share), std::move(x));
  }
};

}  // namespace op
}  // namespace comp::native
