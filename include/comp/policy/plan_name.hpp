// SPDX-License-Identifier: Apache-2.0
// Names a plan in a few words, for progress, tables, warnings and reports: the precision that most operators have, and
// the operators that differ. A plan string with a letter for each operator (core/plan.hpp) is too long to be read.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/policy/kind_name.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// How much a plan's name tells about the operators that differ. `names`: the names of one or two; of more how many of
/// each kind, with the name instead of a single one. `kinds`: how many of each kind. `counts`: how many.
enum class name_detail { names, kinds, counts };

/// Joins words as in "a, b and c".
inline std::string listed(const std::vector<std::string>& all) {
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) text += (i == 0 ? "" : i + 1 < all.size() ? ", " : " and ") + all[i];
  return text;
}

/// Describes the operators `ops`: "head.softmax", "3 conv2d and softmax", "12".
inline std::string operators_in_words(const std::vector<std::size_t>& ops, const op_graph& graph, name_detail detail) {
  if (detail == name_detail::counts || graph.empty()) return fmt::format("{}", ops.size());
  const auto named = [&](std::size_t i) { return graph[i].name.empty() ? fmt::format("#{}", i) : graph[i].name; };
  std::vector<std::string> words;
  if (detail == name_detail::names && ops.size() <= 2) {
    for (const std::size_t i : ops) words.push_back(named(i));
    return listed(words);
  }
  std::vector<std::pair<std::string_view, std::vector<std::size_t>>> kinds;
  for (const std::size_t i : ops) {
    const std::string_view kind = policy::without_overload(graph[i].kind);
    auto at = std::find_if(kinds.begin(), kinds.end(), [&](const auto& each) { return each.first == kind; });
    if (at == kinds.end()) at = kinds.insert(at, {kind, {}});
    at->second.push_back(i);
  }
  for (const auto& [kind, of] : kinds) {
    const bool by_name = of.size() == 1 && detail == name_detail::names;
    words.push_back(by_name ? named(of.front()) : fmt::format("{} {}", of.size(), kind.empty() ? "other" : kind));
  }
  return listed(words);
}

}  // namespace detail

/// Returns a name such as "all in bf16", "all but head.softmax in bf16", "fp32 but 5 linear in bf16" or "bf16, 3 in
/// fp16, 2 in fp32". Operators that are not choosable are left out. A name that would be longer than 60 characters
/// tells less, so two plans may share one.
/// Requires: `graph` belongs to the plan, or is empty; then the name only counts operators.
inline std::string name(const plan& p, const op_graph& graph) {
  constexpr std::size_t longest = 60;
  std::array<std::pair<precision, std::vector<std::size_t>>, all_precisions.size()> shares;
  for (std::size_t k = 0; k < shares.size(); ++k) shares[k].first = all_precisions[k];
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (graph.empty() || graph[i].choosable) shares[static_cast<std::size_t>(p[i])].second.push_back(i);
  }
  const precision reference = widest_written(graph);
  std::sort(shares.begin(), shares.end(), [&](const auto& a, const auto& b) {
    if (a.second.size() != b.second.size()) return a.second.size() > b.second.size();
    return (a.first == reference) != (b.first == reference) ? b.first == reference : a.first < b.first;
  });
  const precision most = shares.front().second.empty() ? reference : shares.front().first;
  const auto text_with = [&](detail::name_detail detail) {
    std::string text{name(most)};
    for (auto at = shares.begin() + 1; at != shares.end() && !at->second.empty(); ++at) {
      const std::string those = detail::operators_in_words(at->second, graph, detail);
      const bool alone = shares[2].second.empty();
      text = alone && at->first == reference ? fmt::format("all but {} in {}", those, text)
             : alone && most == reference    ? fmt::format("{} but {} in {}", text, those, name(at->first))
                                             : fmt::format("{}, {} in {}", text, those, name(at->first));
    }
    return shares[1].second.empty() ? "all in " + text : text;
  };
  std::string text = text_with(detail::name_detail::names);
  if (text.size() > longest) text = text_with(detail::name_detail::kinds);
  if (text.size() > longest) text = text_with(detail::name_detail::counts);
  return text + (p.runs_autocast() ? ", by autocast" : p.is_tuned() ? ", tuned" : "");
}

}  // namespace comp
