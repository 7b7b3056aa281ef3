// SPDX-License-Identifier: Apache-2.0
// Names for a profiler: forward, backward, update and evaluation of each step, and in them each operator's, on a Device
// that has ranges. Inert on others.
#pragma once

#include <comp_native/device.hpp>
#include <variant>

namespace comp::native {

/// What a Device may offer:
///   R range(const char* name)      a profiler's range from here to the end of R's life; those of one thread nest
/// Returns: R; std::monostate on a Device without.
template <Device D>
auto range([[maybe_unused]] D& device, [[maybe_unused]] const char* name) {
  if constexpr (requires { device.range(name); }) {
    return device.range(name);
  } else {
    return std::monostate{};
  }
}

}  // namespace comp::native
