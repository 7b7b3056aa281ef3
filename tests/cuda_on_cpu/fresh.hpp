// SPDX-License-Identifier: Apache-2.0
// A fresh GPU of the stand-in for each test; a real GPU is used as it is.
#pragma once

#include <cuda_runtime.h>
#include <doctest/doctest.h>

namespace comp::cuda::test {

#ifdef COMP_SIMT
/// What a test leaves behind is a failure.
struct fresh {
  fresh() { simt::device = {}; }
  fresh(const fresh&) = delete;
  fresh& operator=(const fresh&) = delete;
  ~fresh() { CHECK_NOTHROW(simt::device.reset()); }
};
/// For whole networks: races of kernels have tests of their own.
struct fresh_for_training : fresh {
  fresh_for_training() { simt::watch_races = false; }
  ~fresh_for_training() { simt::watch_races = true; }
};
#else
struct fresh {
  ~fresh() {}
};
using fresh_for_training = fresh;
#endif

}  // namespace comp::cuda::test
