// SPDX-License-Identifier: Apache-2.0
// A graph as tensors for the jobs: features, the normalised adjacency by which GCN propagates, the edges along which
// GAT attends, and which nodes train and which validate.
#pragma once

#include <examples/data/made_up_graph.hpp>
#include <examples/data/read_graph.hpp>
#include <libtorch/gat.hpp>
#include <libtorch/job.hpp>

namespace torch_models {

struct graph_set {
  torch::Tensor features = {};          // (N,F), rows of L1 norm 1; sparse if a dense one would have more than 80 MB
  torch::Tensor adjacency = {};         // (N,N), sparse: D^-1/2 (A + I) D^-1/2
  edge_list edges = {};                 // the edges of A + I
  columns train = {}, validation = {};  // node numbers and their classes, each (1,n)
  std::int64_t classes = 0;
  std::string source = {};
};

namespace detail {

inline torch::Tensor numbers(const std::vector<std::int32_t>& from) {
  return torch::tensor(torch::ArrayRef<std::int32_t>(from), torch::kLong);
}

inline torch::Tensor feature_matrix(const data_sets::graph& from) {
  const torch::Tensor nodes = numbers(from.feature_node);
  const torch::Tensor values = torch::tensor(torch::ArrayRef<float>(from.feature_value));
  const torch::Tensor sums = torch::zeros({from.nodes}).index_add(0, nodes, values.abs()).clamp_min(1e-12);
  const torch::Tensor matrix =
      torch::sparse_coo_tensor(torch::stack({nodes, numbers(from.feature_column)}),
                               values / sums.index_select(0, nodes), {from.nodes, from.features})
          .coalesce();
  return std::int64_t{from.nodes} * from.features > 20'000'000 ? matrix : matrix.to_dense();
}

inline torch::Tensor normalized_adjacency(const edge_list& edges, std::int64_t nodes) {
  const torch::Tensor ones = torch::ones({edges.target.size(0)});
  const torch::Tensor scale = torch::zeros({nodes}).index_add(0, edges.target, ones).rsqrt();
  return torch::sparse_coo_tensor(torch::stack({edges.target, edges.source}),
                                  scale.index_select(0, edges.target) * scale.index_select(0, edges.source),
                                  {nodes, nodes})
      .coalesce();
}

inline columns nodes_with_labels(const std::vector<std::int64_t>& nodes, const torch::Tensor& labels) {
  const torch::Tensor chosen = torch::tensor(nodes, torch::kLong);
  return {chosen.unsqueeze(0), labels.index_select(0, chosen).unsqueeze(0)};
}

}  // namespace detail

/// Twenty nodes of each class train, and the test part of the split validates.
/// Throws: `comp::file_error` for a graph that cannot be read.
inline graph_set graph_data(const job_options& o) {
  using namespace data_sets;
  const graph from = o.data.empty() ? made_up_graph(o.seed) : read_graph(o.data);
  const node_split split = split_nodes(from, o.seed);
  const torch::Tensor labels = detail::numbers(from.labels), self = torch::arange(from.nodes);
  graph_set set{.features = detail::feature_matrix(from).to(o.device),
                .classes = from.classes,
                .source = o.data.empty() ? "made up" : o.data.filename().string()};
  const edge_list edges{torch::cat({detail::numbers(from.source), self}),
                        torch::cat({detail::numbers(from.target), self})};
  set.adjacency = detail::normalized_adjacency(edges, from.nodes).to(o.device);
  set.edges = {edges.source.to(o.device), edges.target.to(o.device)};
  set.train = detail::on_device(detail::nodes_with_labels(split.train, labels), o.device);
  set.validation = detail::on_device(detail::nodes_with_labels(split.test, labels), o.device);
  return set;
}

}  // namespace torch_models
