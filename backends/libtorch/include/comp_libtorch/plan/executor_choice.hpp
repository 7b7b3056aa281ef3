// SPDX-License-Identifier: Apache-2.0
// How the executor runs a plan, and what was measured of it (executor_tuning.hpp).
#pragma once

#include <comp/core/statistics.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <map>
#include <string>

namespace comp::libtorch {

struct executor_choice {
  weight_casts weights = weight_casts::cast;
  memory_format images = memory_format::as_is;
  std::map<std::string, kernel_use> kernels = {};
  friend bool operator==(const executor_choice&, const executor_choice&) = default;
};
inline executor_choice choice_in(const program_settings& s) {
  return {s.weights, s.images, {s.kernels.begin(), s.kernels.end()}};
}

/// The best choice, and how many times as fast a batch was with it; NaN if that was not tried.
struct tuned_choice {
  executor_choice choice = {};
  paired_speedup keeping = {};
  paired_speedup channels_last = {};                   // with comp's kernels for these images
  std::map<std::string, paired_speedup> kernels = {};  // of the layer alone
};

}  // namespace comp::libtorch
