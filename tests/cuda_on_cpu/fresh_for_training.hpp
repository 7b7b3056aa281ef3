// SPDX-License-Identifier: Apache-2.0
// The GPU of the stand-in for tests that train whole networks.
#pragma once

#include <doctest/doctest.h>

#include <comp_cuda/comp_cuda.hpp>

namespace comp::cuda::test {

/// A fresh GPU for each test; what the test leaves behind is a failure. Races of kernels have tests of their own.
struct fresh_for_training {
  fresh_for_training() {
    simt::device = {};
    simt::watch_races = false;
  }
  fresh_for_training(const fresh_for_training&) = delete;
  fresh_for_training& operator=(const fresh_for_training&) = delete;
  ~fresh_for_training() {
    simt::watch_races = true;
    CHECK_NOTHROW(simt::device.reset());
  }
};

}  // namespace comp::cuda::test
