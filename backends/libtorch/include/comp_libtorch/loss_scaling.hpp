// SPDX-License-Identifier: Apache-2.0
// The constants of dynamic loss scaling and what came of a scaled step. Defaults are PyTorch's, as in the core.
#pragma once

#include <torch/serialize/archive.h>

#include <cmath>
#include <comp/core/error.hpp>
#include <comp/scaling/settings.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace comp::libtorch {

struct scaling_policy {
  double initial = comp::scaling::pytorch().initial;
  double growth = comp::scaling::pytorch().growth;    // times the scale after `interval` good steps in a row
  double backoff = comp::scaling::pytorch().backoff;  // times the scale after a step that overflowed
  std::int64_t interval = comp::scaling::pytorch().growth_interval;  // [steps]
  /// No scale below it; PyTorch has none and falls to 0, where gradients vanish in silence.
  double floor = comp::scaling::pytorch().floor;
  bool enabled = true;  // false: every call does what it would without scaling
  friend bool operator==(const scaling_policy&, const scaling_policy&) = default;
};

/// Throws: `settings_error`, naming the values.
inline void require_usable(const scaling_policy& p) {
  require<settings_error>(std::isfinite(p.initial) && p.floor > 0 && p.initial >= p.floor,
                          "loss scale from {} with floor {} (it starts finite, at or above a floor above 0): change it",
                          p.initial, p.floor);
  require<settings_error>(p.growth >= 1 && p.backoff > 0 && p.backoff < 1 && p.interval > 0,
                          "loss scale that grows by {} and backs off by {} every {} steps (growth 1 or more, backoff "
                          "between 0 and 1, an interval above 0): change it",
                          p.growth, p.backoff, p.interval);
}

/// What one optimizer's scaled step did.
struct scaled_step {
  bool skipped = false;                      // gradients were not finite: the optimizer did not step
  double scale = 1;                          // that the gradients had
  std::vector<std::string> not_finite = {};  // parameters whose gradients were not finite, where they are looked up
  std::string diagnosis = {};                // not empty: the scale is at its floor and gradients still overflow
};

/// All that a scaler carries from step to step.
struct scaler_state {
  double scale = 65536;
  std::int64_t good_steps = 0;  // since the scale changed or a step was skipped
  std::int64_t skipped = 0;     // in all
  friend bool operator==(const scaler_state&, const scaler_state&) = default;
};

inline void write(const scaler_state& state, torch::serialize::OutputArchive& to) {
  to.write("scale", c10::IValue{state.scale});
  to.write("good_steps", c10::IValue{state.good_steps});
  to.write("skipped", c10::IValue{state.skipped});
}

/// Throws: `file_error` when the archive holds no state, or one out of range.
inline scaler_state read_scaler_state(torch::serialize::InputArchive& from, double floor) {
  c10::IValue scale, good, skipped;
  const bool found =
      from.try_read("scale", scale) && from.try_read("good_steps", good) && from.try_read("skipped", skipped);
  require<file_error>(
      found && scale.isDouble() && good.isInt() && skipped.isInt() && std::isfinite(scale.toDouble()) &&
          scale.toDouble() >= floor && good.toInt() >= 0 && good.toInt() < INT32_MAX,
      "archive holds no state of a grad_scaler (scale, good_steps and skipped, in range): save it again");
  return {scale.toDouble(), good.toInt(), skipped.toInt()};
}

}  // namespace comp::libtorch
