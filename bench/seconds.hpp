// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace bench {

/// Seconds of the clock that a call of `work` takes.
double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace bench
