// SPDX-License-Identifier: Apache-2.0
// NVTX's ranges as a profiler would see them, for tests.
#pragma once

#include <string>
#include <vector>

namespace simt {

/// Since the test has begun: "name" for each begin of a range, "/" for each end.
inline std::vector<std::string> ranges;
inline int open_ranges = 0;

}  // namespace simt

/// Returns: how deep it is nested, from 0.
inline int nvtxRangePushA(const char* message) {
  simt::ranges.emplace_back(message);
  return simt::open_ranges++;
}
/// Returns: the same; negative if none is open.
inline int nvtxRangePop() {
  simt::ranges.emplace_back("/");
  return simt::open_ranges > 0 ? --simt::open_ranges : -1;
}
