// SPDX-License-Identifier: Apache-2.0
// NVTX ranges, which Nsight Systems shows beside the kernels. A range covers the time in which the host launched the
// work, not the time in which the device did it. Pending work (pending.hpp) is launched in the range of the operator
// that asks for it.
// Without settings::ranges nothing is called. A build without the toolkit's nvtx3 refuses that setting (context.hpp).
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define COMP_CUDA_HAS_NVTX 1
#endif

namespace comp::cuda {

/// A range as long as its life; none if `on` is false.
class profiler_range {
 public:
#ifdef COMP_CUDA_HAS_NVTX
  static constexpr bool there = true;
  static void begin(const char* name) { (void)nvtxRangePushA(name); }
  static void end() { (void)nvtxRangePop(); }
#else
  static constexpr bool there = false;
  static void begin(const char*) {}
  static void end() {}
#endif
  profiler_range(bool on, const char* name) : on_{on} {
    if (on_) begin(name);
  }
  profiler_range(const profiler_range&) = delete;
  profiler_range& operator=(const profiler_range&) = delete;
  ~profiler_range() {
    if (on_) end();
  }

 private:
  bool on_;
};

}  // namespace comp::cuda
