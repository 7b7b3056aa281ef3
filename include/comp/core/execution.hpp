// SPDX-License-Identifier: Apache-2.0
// How a backend runs a plan beyond its precisions, for instance in which memory layout. Such a choice changes the speed
// and not what the plan means, so it is no part of comp::plan. Outcomes and plan files carry choices as text, because
// only the backend knows what they are.
#pragma once

#include <comp/core/statistics.hpp>
#include <string>
#include <vector>

namespace comp {

/// One choice that a backend made, in the backend's words.
struct execution_choice {
  std::string name = {};     // "images"
  std::string value = {};    // "channels_last"
  paired_speedup gain = {};  // how many times as fast as the alternative that was measured; NaN: nothing was measured
};

using execution = std::vector<execution_choice>;

}  // namespace comp
