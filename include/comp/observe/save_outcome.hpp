// SPDX-License-Identifier: Apache-2.0
// The plan that a search found, as a plan file (files/plan_file.hpp) that says how much it gains.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/search/outcome.hpp>
#include <string>

namespace comp {

/// Writes the plan that a search found, with its speed-up.
COMP_INLINE void save(const outcome& result, const std::string& path);

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/observe/outcome_text.hpp>
#endif
