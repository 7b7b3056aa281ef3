// SPDX-License-Identifier: Apache-2.0
// The plan that a search found, as a plan file (files/plan_file.hpp) that says how much it gains.
#pragma once

#include <comp/core/precision.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/search/outcome.hpp>
#include <string>

namespace comp {

/// Writes the plan that a search found, with its speed-up.
template <class Json = json>
void save(const outcome& found, const std::string& path) {
  Json to = detail::plan_json<Json>(found.plan, found.graph, found.hardware);
  to["speedup"] = json_of<Json>(found.speedup);
  to["speedup_bounds"] = json_of<Json>(found.speedup_bounds);
  Json& searched = to["precisions"] = Json::array();
  for (const precision p : found.precisions) searched.push_back(name(p));
  if (!found.execution.empty()) to["execution"] = json_of<Json>(found.execution);
  detail::write_file(path, detail::plan_text<Json>(to));
}

}  // namespace comp
