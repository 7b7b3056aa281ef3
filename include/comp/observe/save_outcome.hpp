// SPDX-License-Identifier: Apache-2.0
// Writes the plan that a search found to a plan file (files/plan_file.hpp), together with its speedup.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/search/outcome.hpp>
#include <string>

namespace comp {

/// Writes the found plan. Throws: `file_error` if the file cannot be written.
COMP_INLINE void save(const outcome& result, const std::string& path);

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/observe/outcome_text.hpp>
#endif
