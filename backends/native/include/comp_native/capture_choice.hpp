// SPDX-License-Identifier: Apache-2.0
// Chooses between captured and plain steps by the times of a training's own steps (a captured step is recorded once and
// then launched as one piece of work, passes.hpp). Both give the same bits, so no step is wasted.
// Blocks of plain and of captured steps take turns, so that a drift of the machine affects both alike. The first steps
// of a block do not count, because they pay for the change (memory, the capture, an empty cache). The kind with the
// smaller median is kept: plain steps if both are equal, since captured ones hold memory.
#pragma once

#include <fmt/format.h>

#include <comp/core/statistics.hpp>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace comp::native {

/// The result of measuring, so far.
struct capture_report {
  bool decided = false, captured = false;                              // whether it has been decided, and for captured
  std::size_t plain_steps = 0, captured_steps = 0;                     // steps that counted
  double plain_seconds = std::numeric_limits<double>::quiet_NaN();     // median of a plain step
  double captured_seconds = std::numeric_limits<double>::quiet_NaN();  // median of a captured step
  std::string refused = {};  // why steps could not be captured; empty: they could, or nobody has tried
};

/// Returns one line for people; empty if nothing was measured and nothing was refused.
inline std::string text(const capture_report& r) {
  if (!r.refused.empty()) return fmt::format("steps are not captured: {}", r.refused);
  if (r.plain_steps == 0 || r.captured_steps == 0) return {};
  return fmt::format("steps are {}: {:.3f} ms captured, {:.3f} ms call by call (medians of {} and {} steps)",
                     !r.decided   ? "still measured"
                     : r.captured ? "captured"
                                  : "given call by call",
                     1e3 * r.captured_seconds, 1e3 * r.plain_seconds, r.captured_steps, r.plain_steps);
}

class capture_choice {
 public:
  static constexpr std::size_t rounds = 5, counted = 4;  // blocks of each kind; steps of a block that count
  /// The number of steps from the beginning to the decision.
  static constexpr std::size_t all_steps = 2 * (3 + counted) + 2 * (rounds - 1) * (1 + counted);

  bool decided() const { return decided_; }
  /// Returns whether the next step is to be captured.
  bool captured() const { return decided_ ? keeps_ : block_ % 2 == 1; }
  /// Records the time of the step for which captured() was asked. Unit: [s].
  void took(double seconds) {
    if (decided_) return;
    if (at_++ >= uncounted()) (captured() ? captured_ : plain_).push_back(seconds);
    if (at_ < uncounted() + counted) return;
    at_ = 0;
    if (++block_ < 2 * rounds) return;
    decided_ = true;
    keeps_ = median(captured_) < median(plain_);
  }
  /// Decides for plain steps, because steps cannot be captured.
  void refuse(std::string why) {
    decided_ = true;
    keeps_ = false;
    refused_ = std::move(why);
  }
  capture_report report() const {
    return {decided_, decided_ && keeps_, plain_.size(), captured_.size(), median(plain_), median(captured_), refused_};
  }

 private:
  /// The first block of each kind has more steps that do not count: a plan's first steps allocate its memory, and the
  /// first captured ones are a step call by call, the capture, and a first launch.
  std::size_t uncounted() const { return block_ < 2 ? 3 : 1; }

  std::size_t block_ = 0, at_ = 0;  // the current block, and its steps so far
  std::vector<double> plain_, captured_;
  bool decided_ = false, keeps_ = false;
  std::string refused_;
};

}  // namespace comp::native
