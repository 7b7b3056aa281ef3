// SPDX-License-Identifier: Apache-2.0
// Reads a plan file as the plan that a search starts from. The file may be for another batch size, another machine or
// an earlier version of the model, for which load_plan would refuse it: operators are matched by name and kind, and
// those that the file lacks start in FP32.
// Use: search.settings.warm_start = comp::warm_start("plan.json", trainer.graph()).plan;
#pragma once

#include <comp/core/op_graph.hpp>
#include <comp/files/plan_file.hpp>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace comp {

/// Returns: a plan for `graph`, with a warning if the file does not have every operator. A file with only a plan string
/// has no names to match; it is used letter by letter if it has as many operators as `graph`, and is all FP32
/// otherwise.
/// Throws: as load_listing does.
inline loaded_plan warm_start(const std::string& path, const op_graph& graph) {
  const plan_listing from = load_listing(path);
  loaded_plan result{.plan = as_written(graph)};
  std::size_t matched = 0;
  const auto set = [&](std::size_t i, precision p) {
    ++matched;
    if (graph[i].choosable) result.plan[i] = p;
  };
  if (from.operators) {
    std::map<std::pair<std::string_view, std::string_view>, precision> chosen;
    for (const auto& op : *from.operators) chosen[{op.name, op.kind}] = op.chosen;
    for (std::size_t i = 0; i < graph.size(); ++i) {
      const std::string_view name = graph[i].name, kind = graph[i].kind;
      auto at = chosen.find({name, kind});
      // A plan that lists whole layers gives each product of a layer the layer's precision.
      if (at == chosen.end()) at = chosen.find({name.substr(0, name.size() - suffix(graph[i].product).size()), kind});
      if (at != chosen.end()) set(i, at->second);
    }
  } else if (from.size() == graph.size()) {
    for (std::size_t i = 0; i < graph.size(); ++i) set(i, from.chosen(i));
  }
  if (matched < graph.size()) {
    result.warnings.push_back(
        fmt::format("\"{}\" knows {} of {} operators by name and kind: the search starts from FP32 for the others",
                    path, matched, graph.size()));
  }
  return result;
}

}  // namespace comp
