// SPDX-License-Identifier: Apache-2.0
// A plan file as a place to start a search from: found for another batch size, on another machine, or for an earlier
// version of the model. Operators are matched by name and kind; those that the file lacks start in FP32.
// Use: search.settings.warm_start = comp::warm_start("plan.json", trainer.graph()).plan;
// Not here: using the plan as it is (files/plan_file.hpp refuses one of another model).
#pragma once

#include <comp/core/op_graph.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace comp {

namespace detail {

inline std::map<std::pair<std::string, std::string>, precision> precisions_by_name(const json_reader& list) {
  std::map<std::pair<std::string, std::string>, precision> known;
  list.each([&](const json_reader& op) {
    const auto chosen = precision_of(std::string_view{op["precision"].text()});
    if (!chosen) op["precision"].fail("one of fp32, tf32, bf16, fp16, fp8_e4m3, fp8_e5m2");
    known[{op["name"].text(), op["kind"].text()}] = *chosen;
  });
  return known;
}

}  // namespace detail

/// Returns: a plan for `graph`, and a warning where not every operator was found. A file that has a plan string alone
/// is taken operator by operator, where it has as many; else the plan is all FP32. Throws: `file_error` when the file
/// cannot be read or understood.
inline loaded_plan warm_start(const std::string& path, const op_graph& graph) {
  const json_place place{path, 0, "save the plan again with comp::save"};
  const json document = parse_json(detail::read_file(path, detail::plan_file_limit), place);
  const json_reader from{document, place};
  const auto letters = from.find("plan"), list = from.find("operators");
  if (!letters && !list) from.fail("an object with field \"plan\" or \"operators\"");
  loaded_plan result{.plan = plan{graph.size()}};
  std::size_t matched = 0;
  const auto set = [&](std::size_t i, precision p) {
    ++matched;
    if (graph[i].choosable) result.plan[i] = p;
  };
  if (list) {
    const auto known = detail::precisions_by_name(*list);
    for (std::size_t i = 0; i < graph.size(); ++i) {
      const auto at = known.find({graph[i].name, graph[i].kind});
      if (at != known.end()) set(i, at->second);
    }
  } else if (const plan alone = plan_from(*letters); alone.size() == graph.size()) {
    for (std::size_t i = 0; i < graph.size(); ++i) set(i, alone[i]);
  }
  if (matched < graph.size()) {
    result.warnings.push_back(
        fmt::format("\"{}\" knows {} of {} operators by name and kind: the search starts from FP32 for the others",
                    path, matched, graph.size()));
  }
  return result;
}

}  // namespace comp
