// SPDX-License-Identifier: Apache-2.0
// Graphs whose nodes' classes can be learnt, for the tests of models on graphs.
#pragma once

#include <examples/models/native/gat.hpp>
#include <examples/models/native/gcn.hpp>
#include <examples/models/native/graph_data.hpp>
#include <random>
#include <utility>
#include <vector>

namespace comp::native::testing {

/// Four classes. Most edges stay within one, features say a little of it; node 0 has neither edges nor features.
inline data_sets::graph community() {
  constexpr std::int32_t nodes = 120;  // 80 train, 27 validate
  data_sets::graph graph{.nodes = nodes, .features = 12, .classes = 4};
  std::mt19937 random{5};
  const auto below = [&](std::int32_t bound) {
    return static_cast<std::int32_t>(random() % static_cast<unsigned>(bound));
  };
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (int edge = 0; edge < 5 * nodes; ++edge) {
    const std::int32_t from = 1 + below(nodes - 1);
    const std::int32_t to = below(8) == 0 ? 1 + below(nodes - 1) : from % 4 + 4 * below(nodes / 4);
    if (to != 0) pairs.emplace_back(from, to);
  }
  data_sets::set_edges(graph, std::move(pairs), "the community");
  for (std::int32_t v = 0; v < nodes; ++v) {
    graph.labels.push_back(v % 4);
    for (int word = 0; word < 3 && v > 0; ++word) {
      graph.feature_node.push_back(v);
      graph.feature_column.push_back(word == 0 && below(2) == 0 ? v % 4 : below(12));
      graph.feature_value.push_back(1);
    }
  }
  return graph;
}
inline native_models::graph_set community_set() { return native_models::graph_data(community(), 1, 5); }
inline model small_gcn(const native_models::graph_set& set, double dropout = 0.2) {
  return native_models::gcn(
      {.features = set.features, .adjacency = set.adjacency, .hidden = 8, .classes = 4, .dropout = dropout});
}
inline model small_gat(const native_models::graph_set& set, double dropout = 0.2) {
  return native_models::gat(
      {.features = set.features, .edges = set.adjacency, .heads = 3, .hidden = 5, .classes = 4, .dropout = dropout});
}

}  // namespace comp::native::testing
