// SPDX-License-Identifier: Apache-2.0
// Whether captured steps are faster than plain ones, by the times of a training's own steps: both have the same bits,
// so none is wasted. Blocks of plain and of captured steps take turns, and a drift of the machine touches both alike.
// The first steps of a block do not count: they pay for what changes (memory, the capture, an empty cache).
// The smaller median is kept; captured steps hold memory, so plain ones are kept where both are equal.
// Not here: which steps take part, and their clock (training_step.hpp, trainer.hpp).
#pragma once

#include <fmt/format.h>

#include <comp/core/statistics.hpp>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace comp::native {

/// What came of measuring, or what has so far.
struct capture_report {
  bool decided = false, captured = false;                           // captured: what was decided for
  std::size_t plain_steps = 0, captured_steps = 0;                  // that count
  double plain_seconds = std::numeric_limits<double>::quiet_NaN();  // of a step: the median
  double captured_seconds = std::numeric_limits<double>::quiet_NaN();
  std::string refused = {};  // why steps could not be captured; empty: they could, or nobody has tried
};

/// One line for people; empty where nothing was measured and nothing refused.
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
  static constexpr std::size_t rounds = 5, counted = 4;  // counted: steps of a block
  /// From the beginning to the decision.
  static constexpr std::size_t all_steps = 2 * (3 + counted) + 2 * (rounds - 1) * (1 + counted);

  bool decided() const { return decided_; }
  /// Whether the next step is to be captured.
  bool captured() const { return decided_ ? keeps_ : block_ % 2 == 1; }
  /// Tells how long the step took that captured() was asked for. Unit: [s].
  void took(double seconds) {
    if (decided_) return;
    if (at_++ >= uncounted()) (captured() ? captured_ : plain_).push_back(seconds);
    if (at_ < uncounted() + counted) return;
    at_ = 0;
    if (++block_ < 2 * rounds) return;
    decided_ = true;
    keeps_ = median(captured_) < median(plain_);
  }
  /// Steps cannot be captured: plain ones it is.
  void refuse(std::string why) {
    decided_ = true;
    keeps_ = false;
    refused_ = std::move(why);
  }
  capture_report report() const {
    return {decided_, decided_ && keeps_, plain_.size(), captured_.size(), median(plain_), median(captured_), refused_};
  }

 private:
  /// A plan's first steps make its memory; the first captured ones are one call by call, the capture and a first run.
  std::size_t uncounted() const { return block_ < 2 ? 3 : 1; }

  std::size_t block_ = 0, at_ = 0;  // at_: steps of the block
  std::vector<double> plain_, captured_;
  bool decided_ = false, keeps_ = false;
  std::string refused_;
};

}  // namespace comp::native
