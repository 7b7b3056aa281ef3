// SPDX-License-Identifier: Apache-2.0
// Defines save() of save_outcome.hpp.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/core/precision.hpp>
#include <comp/files/plan_text.hpp>
#include <comp/observe/save_outcome.hpp>
#include <string>

namespace comp {

COMP_INLINE void save(const outcome& result, const std::string& path) {
  json to = detail::plan_json(result.plan, result.graph, result.hardware);
  to["speedup"] = json_of(result.speedup);
  to["speedup_bounds"] = json_of(result.speedup_bounds);
  json& searched = to["precisions"] = json::array();
  for (const precision p : result.precisions) searched.push_back(name(p));
  if (!result.execution.empty()) to["execution"] = json_of(result.execution);
  if (!result.later.empty()) to["later"] = json_of(result.later);
  detail::write_file(path, detail::plan_text(to));
}

}  // namespace comp
