// SPDX-License-Identifier: Apache-2.0
// Citation graphs as LINQS publishes them (Cora, CiteSeer). Each line of <name>.content has a paper, its words as zeros
// and ones, and its class; each line of <name>.cites has two papers.
// Not here: Planetoid's files, which are pickles and would run code.
#pragma once

#include <examples/data/graph.hpp>
#include <examples/data/lines.hpp>
#include <examples/data/printable.hpp>
#include <examples/data/text.hpp>
#include <map>
#include <unordered_map>

namespace data_sets {
namespace detail {

inline void add_paper(graph& to, const std::vector<std::string_view>& of, std::map<std::string, std::int32_t>& classes,
                      std::string_view name, std::size_t line) {
  require<file_error>(of.size() >= 3 && (to.nodes == 0 || std::ssize(of) == to.features + 2),
                      "{} line {} has {} fields ({} are needed: paper, words, class): fetch the file again", name, line,
                      of.size(), to.nodes == 0 ? "3 or more" : std::to_string(to.features + 2));
  to.features = static_cast<std::int32_t>(of.size() - 2);
  for (std::size_t word = 1; word + 1 < of.size(); ++word) {
    require<file_error>(of[word] == "0" || of[word] == "1",
                        "{} line {} has \"{}\" for word {} (0 or 1 is needed): fetch the file again", name, line,
                        printable(of[word]), word);
    if (of[word] == "0") continue;
    to.feature_node.push_back(to.nodes);
    to.feature_column.push_back(static_cast<std::int32_t>(word - 1));
    to.feature_value.push_back(1);
  }
  const auto [known, fresh] = classes.try_emplace(std::string{of.back()}, static_cast<std::int32_t>(classes.size()));
  to.labels.push_back(known->second);
  ++to.nodes;
}

}  // namespace detail

/// Classes are numbered by the order of their names. Citations of papers without a line in `content` are left out, as
/// readers of CiteSeer usually do (17 citations). More than one such citation in a hundred is refused, since the files
/// then do not belong together.
/// Throws: `file_error`, naming file and line.
inline graph parse_citations(std::string_view content, std::string_view cites, std::string_view content_name,
                             std::string_view cites_name) {
  graph network;
  std::unordered_map<std::string_view, std::int32_t> papers;
  std::map<std::string, std::int32_t> classes;
  for_each_line(content, [&](std::string_view line, std::size_t number) {
    const auto parts = fields(line, '\t');
    require<file_error>(papers.try_emplace(parts.front(), network.nodes).second,
                        "{} line {} has paper \"{}\" again (each has one line): fetch the file again", content_name,
                        number, printable(parts.front()));
    detail::add_paper(network, parts, classes, content_name, number);
  });
  require<file_error>(network.nodes > 0, "{} has no paper (one in each line is needed): fetch the file again",
                      content_name);
  std::vector<std::int32_t> by_name(classes.size());
  for (const auto& [name, first_seen] : classes) {
    by_name[static_cast<std::size_t>(first_seen)] = network.classes++;
    network.class_names.push_back(name);
  }
  for (std::int32_t& label : network.labels) label = by_name[static_cast<std::size_t>(label)];
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  std::size_t unknown = 0;
  for_each_line(cites, [&](std::string_view line, std::size_t number) {
    const auto two = fields(line, '\t');
    require<file_error>(two.size() == 2, "{} line {} has {} fields (two papers are needed): fetch the file again",
                        cites_name, number, two.size());
    const auto a = papers.find(two[0]), b = papers.find(two[1]);
    a == papers.end() || b == papers.end() ? void(++unknown) : void(pairs.emplace_back(a->second, b->second));
  });
  require<file_error>(unknown * 100 <= unknown + pairs.size(),
                      "{} has {} citations of papers that {} lacks, and {} of others (one in a hundred at most): "
                      "check that the two belong together",
                      cites_name, unknown, content_name, pairs.size());
  set_edges(network, std::move(pairs), cites_name);
  return network;
}

}  // namespace data_sets
