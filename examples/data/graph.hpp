// SPDX-License-Identifier: Apache-2.0
// A graph whose nodes have features and a class, which the readers of this folder return, and splits of its nodes.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace data_sets {

using comp::file_error;
using comp::require;

/// source and target are (E): each edge is there once in both directions, sorted by target and then by source; no edge
/// leads from a node to itself. The three vectors of features are (Z), one element for each feature that is not zero,
/// sorted by node and then by column.
struct graph {
  std::int32_t nodes = 0;
  std::int32_t features = 0;
  std::int32_t classes = 0;
  std::vector<std::int32_t> source = {}, target = {};
  std::vector<std::int32_t> feature_node = {}, feature_column = {};
  std::vector<float> feature_value = {};
  std::vector<std::int32_t> labels = {};  // (nodes), each in [0, classes)
  std::vector<std::string> class_names = {};
};

inline constexpr std::size_t most_nodes = 100'000'000;

/// Sets the edges of a graph from pairs of nodes, which may have any order and direction and may be repeated.
/// Requires: of.nodes is set. Throws: `file_error` for a node beyond them.
inline void set_edges(graph& of, std::vector<std::pair<std::int32_t, std::int32_t>> pairs, std::string_view name) {
  const std::size_t given = pairs.size();
  pairs.reserve(2 * given);
  for (std::size_t i = 0; i < given; ++i) {
    const auto [a, b] = pairs[i];
    require<file_error>(std::min(a, b) >= 0 && std::max(a, b) < of.nodes,
                        "{} has edge {} from node {} to node {} (nodes are 0 to {}): fetch the file again", name, i, a,
                        b, of.nodes - 1);
    pairs.emplace_back(b, a);
  }
  std::erase_if(pairs, [](const auto& edge) { return edge.first == edge.second; });
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  for (const auto& [to, from] : pairs) {
    of.target.push_back(to);
    of.source.push_back(from);
  }
}

/// The numbers of nodes. A node is in one part at most.
struct node_split {
  std::vector<std::int64_t> train, validation, test;
};

/// Draws a number of nodes from each class to train on, and 500 and 1000 of the others for validation and test, which
/// are planetoid's sizes. If fewer are left, a third and two thirds of them. The same seed gives the same split on
/// every machine. Throws: `file_error` if no node is left to validate on.
inline node_split split_nodes(const graph& of, std::uint64_t seed, std::int64_t from_each_class = 20) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(of.nodes));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::mt19937_64 random{seed};
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  node_split parts;
  std::vector<std::int64_t> taken(static_cast<std::size_t>(of.classes)), rest;
  for (const std::int64_t node : order) {
    std::int64_t& count = taken[static_cast<std::size_t>(of.labels[static_cast<std::size_t>(node)])];
    (count < from_each_class ? parts.train : rest).push_back(node);
    ++count;
  }
  require<file_error>(rest.size() >= 3,
                      "{} nodes are left when each class has given {} (some must validate and test): "
                      "use a larger graph",
                      rest.size(), from_each_class);
  const std::size_t validation = rest.size() >= 1500 ? 500 : rest.size() / 3;
  const std::size_t test = std::min<std::size_t>(rest.size() - validation, 1000);
  const auto at = [&](std::size_t i) { return rest.begin() + static_cast<std::ptrdiff_t>(i); };
  parts.validation.assign(at(0), at(validation));
  parts.test.assign(at(validation), at(validation + test));
  return parts;
}

}  // namespace data_sets
