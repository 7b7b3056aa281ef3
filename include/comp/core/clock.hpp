// SPDX-License-Identifier: Apache-2.0
// The clock by which comp measures. A test puts another in its place, so that a busy machine gives the same search.
#pragma once

#include <chrono>

namespace comp::detail {

/// Returns: seconds since some moment, by a clock that is never set back.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline double (*clock_seconds)() = monotonic_seconds;

class stopwatch {
 public:
  /// Returns: seconds since it was made.
  double seconds() const { return clock_seconds() - began_; }

 private:
  double began_ = clock_seconds();
};

}  // namespace comp::detail
