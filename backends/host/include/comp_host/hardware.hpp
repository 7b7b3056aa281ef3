// SPDX-License-Identifier: Apache-2.0
// The precisions that host::device computes in, and which of them a CPU speeds up.
#pragma once

#include <comp/core/hardware.hpp>
#include <comp/core/precision.hpp>
#include <vector>

namespace comp::host {

/// These run on any CPU, if not fast: the formats below 16 bits are emulated (scaled_linear.hpp).
inline std::vector<precision> supported_precisions() {
  std::vector<precision> all{all_precisions.begin(), all_precisions.end()};
  std::erase_if(all, [](precision p) { return p == precision::tf32 || p == precision::fp64; });
  return all;
}

/// True if arithmetic in `p` is faster than in FP32. FP16 never is: oneDNN 2.6 has no FP16 arithmetic on CPUs, even on
/// a CPU that has it, so host::device stores FP16 and computes in FP32.
inline bool accelerated(const hardware& cpu, precision p) { return p == precision::bf16 && has_unit(p, cpu); }

}  // namespace comp::host
