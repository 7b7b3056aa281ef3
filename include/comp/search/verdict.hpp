// SPDX-License-Identifier: Apache-2.0
// The verdict on a plan's losses compared with FP32's, and the criterion behind it. Not here: how it is decided
// (losses/loss_test.hpp for batches, losses/acceptance.hpp for whole epochs).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace comp {

/// What decides whether a plan trains as well as FP32.
enum class criterion : std::uint8_t {
  batch_losses,  // losses of the same batches from the same state, until they decide
  epoch_losses,  // the paper's rule: mean losses of whole epochs
  scores         // what the backend's validate() gives after a whole epoch; higher is better
};

constexpr std::string_view name(criterion c) {
  constexpr std::string_view names[] = {"losses of the same batches", "mean losses of whole epochs",
                                        "scores after whole epochs"};
  return names[static_cast<std::size_t>(c)];
}

/// Whether a plan trains as well as FP32, by the batches that were trained so far.
enum class loss_answer : std::uint8_t { go_on, accepted, rejected };

/// What the losses of the same batches say about a plan and FP32.
struct loss_verdict {
  loss_answer answer = loss_answer::go_on;  // accepted, rejected, or not decided
  double difference = 0;                    // how far the mean loss is above FP32's, relative as the tolerance is
  double radius = 0;                        // half of its confidence interval; infinity if there are too few batches
  double line = 0;                          // what `difference` has to be under
  double at_end = 0;                        // what it is expected to grow to in the planned training; 0: not counted
};

/// Returns: true if a loss is above the tolerance by more than the estimate may be wrong. A rejected plan for which
/// this is false is undecided rather than harmful.
inline bool is_shown_worse(const loss_verdict& loss, double tolerance) {
  return loss.difference - (std::isfinite(loss.radius) ? loss.radius : 0) > tolerance;
}

}  // namespace comp
