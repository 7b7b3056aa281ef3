// SPDX-License-Identifier: Apache-2.0
// A graph as GCN and GAT read it: features, the normalised adjacency by which GCN propagates, the edges along which GAT
// attends, and which nodes train and which validate.
#pragma once

#include <cmath>
#include <comp_native/data_source.hpp>
#include <comp_native/model_builder.hpp>
#include <cstdint>
#include <examples/data/graph.hpp>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace native_models {

using namespace comp::native;

/// A data set whose examples are all the whole graph: the values of its features, and the labels of some nodes. The
/// labels of the other nodes are negative and do not count.
class node_data {
 public:
  node_data(std::vector<float> values, const data_sets::graph& of, const std::vector<std::int64_t>& nodes,
            std::size_t examples)
      : values_{std::move(values)}, labels_(static_cast<std::size_t>(of.nodes), -1), examples_{examples} {
    for (const std::int64_t node : nodes) {
      labels_[static_cast<std::size_t>(node)] = of.labels[static_cast<std::size_t>(node)];
    }
    const auto hash = [](const auto& numbers) { return hash_of<std::int32_t>(numbers); };
    signature_ =
        fmt::format("{} x graph of {} nodes, {} edges {:016x} {:016x}, {} features {:016x} {:016x}, labels {:016x}",
                    examples, of.nodes, of.source.size(), hash(of.source), hash(of.target), of.features,
                    hash(of.feature_node), hash(of.feature_column), hash(labels_));
  }
  std::size_t size() const { return examples_; }
  example_layout layout() const {
    return {.input_shape = {std::ssize(values_)}, .target_shape = {std::ssize(labels_)}};
  }
  void write(std::size_t, const example_spans& to) const {
    std::ranges::copy(values_, to.values.begin());
    std::ranges::copy(labels_, to.labels.begin());
  }
  std::string signature() const { return signature_; }

 private:
  std::vector<float> values_;
  std::vector<std::int32_t> labels_;
  std::size_t examples_;
  std::string signature_;
};

struct graph_set {
  sparse features = {};   // (nodes, features), rows of L1 norm 1
  sparse adjacency = {};  // (nodes, nodes): D^-1/2 (A + I) D^-1/2
  node_data train, validation;
};

namespace detail {

/// Returns: A + I by rows, each edge once, normalised.
inline sparse normalized_adjacency(const data_sets::graph& of) {
  host_csr m{.rows = of.nodes, .columns = of.nodes, .begin = {0}};
  std::size_t next = 0;
  for (std::int32_t node = 0; node < of.nodes; ++node) {
    bool self = false;
    const auto add_self = [&] {
      if (!std::exchange(self, true)) m.column.push_back(node);
    };
    for (; next < of.target.size() && of.target[next] == node; ++next) {
      if (of.source[next] > node) add_self();
      m.column.push_back(of.source[next]);
    }
    add_self();
    m.begin.push_back(static_cast<std::int32_t>(m.column.size()));
  }
  const auto rows = rows_of(m);
  const auto scale = [&](std::int32_t node) {
    const auto v = static_cast<std::size_t>(node);
    return 1 / std::sqrt(static_cast<float>(m.begin[v + 1] - m.begin[v]));
  };
  for (std::size_t e = 0; e < rows.size(); ++e) m.value.push_back(scale(rows[e]) * scale(m.column[e]));
  return model_builder::matrix(std::move(m));
}

/// Values at the same position are added.
inline sparse feature_matrix(const data_sets::graph& of) {
  std::map<std::pair<std::int32_t, std::int32_t>, float> all;
  for (std::size_t i = 0; i < of.feature_node.size(); ++i)
    all[{of.feature_node[i], of.feature_column[i]}] += of.feature_value[i];
  std::vector<float> sums(static_cast<std::size_t>(of.nodes));
  for (const auto& [place, value] : all) sums[static_cast<std::size_t>(place.first)] += std::abs(value);
  host_csr m{.rows = of.nodes, .columns = of.features, .begin = std::vector<std::int32_t>(sums.size() + 1)};
  for (const auto& [place, value] : all) {
    const auto node = static_cast<std::size_t>(place.first);
    ++m.begin[node + 1];
    m.column.push_back(place.second);
    m.value.push_back(value / std::max(sums[node], 1e-12F));
  }
  std::partial_sum(m.begin.begin(), m.begin.end(), m.begin.begin());
  return model_builder::matrix(std::move(m));
}

}  // namespace detail

/// Twenty nodes of each class train, and the test part of the split validates. The same seed gives the same split on
/// every machine. An epoch reads the graph `steps` times. Throws: `error` for a graph that contradicts itself or has no
/// features.
inline graph_set graph_data(const data_sets::graph& of, std::uint64_t seed, std::size_t steps = 10) {
  comp::require<comp::error>(!of.feature_node.empty(),
                             "a graph of {} nodes with {} features, all of them zero (a "
                             "model on graphs reads them): use another graph",
                             of.nodes, of.features);
  const data_sets::node_split split = data_sets::split_nodes(of, seed);
  sparse features = detail::feature_matrix(of);
  node_data train{features->value, of, split.train, steps}, validation{features->value, of, split.test, 1};
  return {std::move(features), detail::normalized_adjacency(of), std::move(train), std::move(validation)};
}

}  // namespace native_models
