// SPDX-License-Identifier: Apache-2.0
// How a backend runs a plan, beyond the precisions: choices of its own that change speed and not what a plan means
// (memory that is kept, a layout). Core and plan files carry them without knowing what they are.
#pragma once

#include <comp/core/statistics.hpp>
#include <string>
#include <vector>

namespace comp {

/// One choice, in the backend's words.
struct execution_choice {
  std::string name = {};     // "images"
  std::string value = {};    // "channels_last"
  paired_speedup gain = {};  // how many times as fast as what it was measured against; NaN: not measured
};

using execution = std::vector<execution_choice>;

}  // namespace comp
