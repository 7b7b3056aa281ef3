// SPDX-License-Identifier: Apache-2.0
// Graphs of the MUSAE collection (facebook, github, ...): <name>_edges.csv, <name>_features.json with the features of
// each node, and <name>_target.csv with its class.
// Source: Rozemberczki et al. 2021 (arXiv 1909.13021)
#pragma once

#include <comp/files/json_reader.hpp>
#include <examples/data/graph.hpp>
#include <examples/data/lines.hpp>
#include <set>

namespace data_sets {

using comp::file_error;
using comp::json;
using comp::json_place;
using comp::json_reader;
using comp::parse_json;
using comp::require;

/// The texts of the three files, and what messages call them.
struct musae_files {
  std::string edges, features, target;
  std::string edges_name = "edges", features_name = "features", target_name = "target";
};

namespace detail {

inline std::size_t column_named(const std::vector<std::string>& header, std::initializer_list<std::string_view> names,
                                std::string_view file) {
  for (std::size_t column = 0; column < header.size(); ++column) {
    if (std::find(names.begin(), names.end(), header[column]) != names.end()) return column;
  }
  std::string wanted;
  for (const auto name : names) wanted += fmt::format("{}{}", wanted.empty() ? "" : " or ", name);
  throw file_error{fmt::format("{} has no column {} (it gives each node): fetch the file again", file, wanted)};
}

/// Classes are numbered by the order of their names.
inline void read_targets(graph& to, const musae_files& from) {
  const auto rows = parse_csv(from.target, from.target_name);
  require<file_error>(rows.size() >= 2 && rows.size() <= most_nodes,
                      "{} has {} rows (a header and a row a node): fetch it again", from.target_name, rows.size());
  const std::size_t id = column_named(rows[0], {"id"}, from.target_name);
  const std::size_t type = column_named(rows[0], {"page_type", "ml_target"}, from.target_name);
  to.nodes = static_cast<std::int32_t>(rows.size() - 1);
  to.labels.assign(rows.size() - 1, -1);
  std::set<std::string> names;
  for (std::size_t i = 1; i < rows.size(); ++i) names.insert(rows[i][type]);
  to.class_names.assign(names.begin(), names.end());
  to.classes = static_cast<std::int32_t>(names.size());
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto node = static_cast<std::size_t>(whole_number(rows[i][id], 0, to.nodes - 1, from.target_name, i + 1));
    require<file_error>(to.labels[node] == -1, "{} line {} has node {} again (each has one row): fetch the file again",
                        from.target_name, i + 1, node);
    to.labels[node] = static_cast<std::int32_t>(std::distance(names.begin(), names.find(rows[i][type])));
  }
}

inline void read_features(graph& to, const musae_files& from) {
  const json_place place{.file = from.features_name, .line = 0, .remedy = "fetch the file again"};
  const json document = parse_json(from.features, place);
  const json_reader root{document, place};
  std::size_t known = 0;
  for (std::int32_t node = 0; node < to.nodes; ++node) {
    const std::string name = std::to_string(node);  // which the reader refers to
    const auto has = root.find(name);
    if (!has) continue;
    ++known;
    std::set<std::int32_t> columns;
    has->each(
        [&](const json_reader& column) { columns.insert(static_cast<std::int32_t>(column.integer(0, 10'000'000))); });
    for (const std::int32_t column : columns) {
      to.feature_node.push_back(node);
      to.feature_column.push_back(column);
      to.feature_value.push_back(1);
      to.features = std::max(to.features, column + 1);
    }
  }
  require<file_error>(
      known == document.size() && to.features > 0,
      "{} has features of {} nodes, {} of them known (there are {}): check that the files belong together",
      from.features_name, document.size(), known, to.nodes);
}

}  // namespace detail

/// Throws: `file_error`, naming the file and the line or element.
inline graph parse_musae(const musae_files& from) {
  graph made;
  detail::read_targets(made, from);
  detail::read_features(made, from);
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for_each_line(from.edges, [&](std::string_view line, std::size_t number) {
    if (number == 1) return;
    const auto two = fields(line, ',');
    require<file_error>(two.size() == 2, "{} line {} has {} fields (two nodes are needed): fetch the file again",
                        from.edges_name, number, two.size());
    const auto node = [&](std::string_view text) {
      return static_cast<std::int32_t>(whole_number(text, 0, made.nodes - 1, from.edges_name, number));
    };
    pairs.emplace_back(node(two[0]), node(two[1]));
  });
  set_edges(made, std::move(pairs), from.edges_name);
  return made;
}

}  // namespace data_sets
