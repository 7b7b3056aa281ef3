// SPDX-License-Identifier: Apache-2.0
// A made-up graph, for users without data. Its classes can be learnt.
#pragma once

#include <examples/data/graph.hpp>

namespace data_sets {

/// Returns: a graph of Cora's sizes. Nodes of a class share words, and seven of eight edges stay within a class.
inline graph made_up_graph(std::uint64_t seed) {
  graph network{.nodes = 2708, .features = 1433, .classes = 7};
  std::mt19937_64 random{seed};
  const auto below = [&](std::int32_t bound) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(bound));
  };
  for (std::int32_t node = 0; node < network.nodes; ++node) network.labels.push_back(node % network.classes);
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (std::int32_t edge = 0; edge < 5300; ++edge) {
    const std::int32_t from = below(network.nodes);
    const std::int32_t to = below(8) == 0
                                ? below(network.nodes)
                                : from % network.classes + network.classes * below(network.nodes / network.classes);
    pairs.emplace_back(from, to);
  }
  set_edges(network, std::move(pairs), "the made-up graph");
  for (std::int32_t node = 0; node < network.nodes; ++node) {
    for (int word = 0; word < 18; ++word) {
      network.feature_node.push_back(node);
      network.feature_column.push_back(word % 3 == 0 ? node % network.classes * 200 + below(200)
                                                     : below(network.features));
      network.feature_value.push_back(1);
    }
  }
  return network;
}

}  // namespace data_sets
