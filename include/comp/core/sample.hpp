// SPDX-License-Identifier: Apache-2.0
// What one run of a plan gave: an epoch or a batch. Never one double: a number cannot say "out of memory".
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

enum class status : std::uint8_t {
  ok,
  diverged,       // the loss left every reasonable range
  not_finite,     // the loss became NaN or infinite, and stayed so (core/lost_batches.hpp)
  out_of_memory,  // the plan does not fit
  stopped_early,  // cut because it was hopelessly slow
  failed          // the backend threw; `message` says what
};

constexpr std::string_view name(status s) {
  constexpr std::string_view names[] = {"ok", "diverged", "not_finite", "out_of_memory", "stopped_early", "failed"};
  return names[static_cast<std::size_t>(s)];
}

struct sample {
  double loss = std::numeric_limits<double>::quiet_NaN();  // mean over the batches of the run, lost ones left out
  std::vector<double> losses = {};               // each loss of a trainer that has several (a GAN's two); else empty
  double seconds = 0;                            // wall time of the run, data loading included
  std::int64_t batches = 0;                      // trained in this run
  std::int64_t not_finite = 0;                   // of these batches, those that were lost: their loss was not finite
  std::int64_t peak_bytes = 0;                   // most memory in use at once during the run; 0: not measured
  std::vector<double> batch_seconds = {};        // of each batch, in order; empty: not measured
  std::vector<double> curve = {};                // loss of each batch, in order; empty: not recorded
  std::vector<std::vector<double>> curves = {};  // the same for each of several losses
  std::optional<double> score = {};              // validation score after the run, higher is better
  comp::status status = comp::status::ok;
  std::string message = {};  // why it failed

  bool ok() const { return status == comp::status::ok; }
};

/// Asked by a backend after each batch of an epoch with what the epoch gave so far; true: end the epoch now.
using stop_predicate = std::function<bool(const sample& so_far)>;

}  // namespace comp
