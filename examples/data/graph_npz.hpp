// SPDX-License-Identifier: Apache-2.0
// Graphs as .npz files of the gnn-benchmark collection (cora.npz, citeseer.npz, pubmed.npz, ...): adjacency and
// features as compressed sparse rows, and a label for each node.
// Source: Shchur et al. 2018 (arXiv 1811.05868)
#pragma once

#include <examples/data/graph.hpp>
#include <examples/data/npz.hpp>

namespace data_sets {
namespace detail {

/// Compressed sparse rows, unpacked to (row, column) pairs with the position of each value.
struct sparse_rows {
  std::int32_t rows = 0, columns = 0;
  std::vector<std::int32_t> row = {}, column = {};
};

inline sparse_rows read_rows(const npz_arrays& from, const std::string& part, std::string_view name) {
  const auto shape = from[part + "_shape"].integers(1, static_cast<std::int64_t>(most_nodes));
  require<file_error>(shape.size() == 2, "{} has {}_shape of {} numbers (rows and columns are needed): fetch it again",
                      name, part, shape.size());
  const npy_array& places = from[part + "_indices"];
  const auto count = static_cast<std::int64_t>(places.size());
  const auto starts = from[part + "_indptr"].integers(0, count);
  require<file_error>(
      std::ssize(starts) == shape[0] + 1 && starts.front() == 0 && starts.back() == count &&
          std::is_sorted(starts.begin(), starts.end()),
      "{} has {}_indptr that does not divide {} elements into {} rows (it must rise from 0 to the last): "
      "fetch it again",
      name, part, count, shape[0]);
  sparse_rows matrix{.rows = static_cast<std::int32_t>(shape[0]), .columns = static_cast<std::int32_t>(shape[1])};
  for (const std::int64_t column : places.integers(0, shape[1] - 1))
    matrix.column.push_back(static_cast<std::int32_t>(column));
  for (std::int32_t r = 0; r < matrix.rows; ++r) {
    matrix.row.resize(static_cast<std::size_t>(starts[static_cast<std::size_t>(r) + 1]), r);
  }
  return matrix;
}

}  // namespace detail

/// Throws: `file_error`, naming file, array and element, for anything but such an archive, and for arrays that
/// contradict each other.
inline graph parse_graph_npz(std::span<const std::byte> bytes, std::string_view name,
                             std::size_t limit = default_limit) {
  const npz_arrays arrays{bytes, name, limit};
  const detail::sparse_rows edges = detail::read_rows(arrays, "adj", name),
                            values = detail::read_rows(arrays, "attr", name);
  const auto labels = arrays["labels"].integers(0, 65535);
  require<file_error>(edges.rows == edges.columns && values.rows == edges.rows && std::ssize(labels) == edges.rows,
                      "{} has a {}x{} adjacency, features of {} nodes and {} labels (one number of nodes is needed): "
                      "fetch it again",
                      name, edges.rows, edges.columns, values.rows, labels.size());
  graph network{.nodes = edges.rows,
                .features = values.columns,
                .feature_node = values.row,
                .feature_column = values.column,
                .feature_value = arrays["attr_data"].floats(),
                .labels = {labels.begin(), labels.end()}};
  require<file_error>(network.feature_value.size() == values.row.size(),
                      "{} has {} values of features at {} places (as many are needed): fetch it again", name,
                      network.feature_value.size(), values.row.size());
  network.classes = *std::max_element(network.labels.begin(), network.labels.end()) + 1;
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (std::size_t i = 0; i < edges.row.size(); ++i) pairs.emplace_back(edges.row[i], edges.column[i]);
  set_edges(network, std::move(pairs), name);
  return network;
}

}  // namespace data_sets
