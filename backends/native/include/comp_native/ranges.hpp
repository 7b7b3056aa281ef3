// SPDX-License-Identifier: Apache-2.0
// Names the parts of a step for a profiler: forward, backward, update and evaluation, and in them each operator. Does
// nothing on a Device without ranges.
#pragma once

#include <comp_native/device.hpp>
#include <variant>

namespace comp::native {

/// A Device may have
///   R range(const char* name)      a profiler's range, which ends when R is destroyed; the ranges of a thread nest
/// Returns: R; std::monostate on a Device without ranges.
template <Device D>
auto range([[maybe_unused]] D& device, [[maybe_unused]] const char* name) {
  if constexpr (requires { device.range(name); }) {
    return device.range(name);
  } else {
    return std::monostate{};
  }
}

}  // namespace comp::native
