// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp/core/trial.hpp>

namespace comp {

/// Counts the trials of a search.
struct added_observer {
  int* trials;
  void trial_done(const trial&) { ++*trials; }
};

}  // namespace comp
