// SPDX-License-Identifier: Apache-2.0
// How the executor runs a plan, what was measured of it (executor_tuning.hpp), and for how long.
#pragma once

#include <comp/core/statistics.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <cstddef>
#include <cstdint>
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

/// How long the executor's choices are measured.
struct tuning_settings {
  std::size_t rounds = 7;  // at least; in each both choices have a batch to get used to it and a batch that is timed
  std::size_t most_rounds = 28;  // at most, as long as the interval says neither faster nor slower
  double most_seconds = 60;      // [s] for one choice, once it has its `rounds`
  double alike = 0.01;           // an interval within 1 +- this is clear, too: the choice does not matter
  // Leaves out kept weights, and whole steps if no layout of images is to be chosen.
  bool quick = false;
  std::int64_t shortest_epoch = 150;  // [batches]: if an epoch has fewer, a search measures quickly
  double most_epochs = 2;             // [epochs]: if a quick measurement takes more, a search measures nothing
  std::int64_t trained_with = 500;    // [batches] in a row: then a plan is measured itself in any case
  double hopeless = 1.5;              // times FP32's batch: a plan that is slower is not measured
};
/// Returns: `s` with as few rounds as give an interval.
inline tuning_settings quick(tuning_settings s) {
  s.quick = true;
  s.rounds = s.most_rounds = 6;
  return s;
}

}  // namespace comp::libtorch
