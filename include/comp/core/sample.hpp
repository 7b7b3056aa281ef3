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

/// How a run ended.
enum class status : std::uint8_t {
  ok,             // as it should
  diverged,       // the loss left every reasonable range
  not_finite,     // the loss became NaN or infinite, and stayed so (core/lost_batches.hpp)
  out_of_memory,  // the plan needs more memory than there is
  stopped_early,  // the search ended it, because the plan was hopelessly slow
  failed          // the trainer threw an exception; `message` has its words
};

constexpr std::string_view name(status s) {
  constexpr std::string_view names[] = {"ok", "diverged", "not_finite", "out_of_memory", "stopped_early", "failed"};
  return names[static_cast<std::size_t>(s)];
}

/// What one run of a plan gave: one batch, or several batches in a row. A trainer fills it in, and comp completes it.
struct sample {
  double loss =
      std::numeric_limits<double>::quiet_NaN();  // mean over the batches; those without a finite loss left out
  std::vector<double> losses = {};         // the mean of each loss, for a trainer that has several (a GAN has two)
  double seconds = 0;                      // wall time of the run, data loading included; 0: comp takes the time itself
  std::int64_t batches = 0;                // how many batches were trained in this run
  std::int64_t not_finite = 0;             // how many of these batches had a loss that was NaN or infinite
  std::int64_t peak_bytes = 0;             // most memory in use at once during the run; 0: not measured
  std::vector<double> batch_seconds = {};  // wall time of each batch, in order; empty: not measured
  std::vector<double> curve = {};          // loss of each batch, in order; empty: not recorded
  std::vector<std::vector<double>> curves = {};  // loss of each batch for each of several losses: curves[loss][batch]
  std::optional<double> score = {};              // what validate() gave after the run; higher is better
  comp::status status = comp::status::ok;        // how the run ended
  std::string message = {};                      // what failed, where the run failed

  bool ok() const { return status == comp::status::ok; }
};

/// Asked by a backend after each batch of an epoch with what the epoch gave so far; true: end the epoch now.
using stop_predicate = std::function<bool(const sample& so_far)>;

}  // namespace comp
