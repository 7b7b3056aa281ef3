// SPDX-License-Identifier: Apache-2.0
// NVTX's ranges, which Nsight Systems shows beside the kernels. They are the host's: of when work was given. What waits
// to be asked for (pending.hpp) is given in the range of the operator that asks.
// Inert unless settings::ranges asks for them; refused then by a build without the toolkit's nvtx3.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define COMP_CUDA_HAS_NVTX 1
#endif

namespace comp::cuda {

/// From its making to the end of its life, where `on`.
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
