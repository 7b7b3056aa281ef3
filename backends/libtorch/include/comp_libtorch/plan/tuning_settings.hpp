// SPDX-License-Identifier: Apache-2.0
// How long the executor's choices are measured (executor_tuning.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace comp::libtorch {

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
