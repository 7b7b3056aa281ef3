// SPDX-License-Identifier: Apache-2.0
// Checks of an operator's arguments that all Devices and the model builder share, so that a wrong shape has the same
// message everywhere. All of them throw: error, with the shapes that do not fit.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_native/device.hpp>
#include <cstdint>
#include <string>

namespace comp::native {

/// Returns a shape as "(64,3,32,32)". It is made at each call of an operator for a message that is hardly ever needed,
/// so it does without fmt's parser and, for short shapes, without allocation.
inline std::string text(const shape& extents) {
  std::string text{"("};
  for (const std::int64_t extent : extents) {
    if (text.size() > 1) text += ',';
    const fmt::format_int digits{extent};
    text.append(digits.data(), digits.size());
  }
  return text += ')';
}

inline void require_some(const char* operation, const shape& s) {
  require<error>(std::ranges::all_of(s, [](auto extent) { return extent > 0; }),
                 "{} of a tensor of shape {} (it has no elements): leave out empty batches", operation, text(s));
}
inline void require_same(const char* operation, const shape& a, const shape& b) {
  require<error>(a == b, "{} of {} and {} (the shapes must be equal): reshape one of them", operation, text(a),
                 text(b));
}
/// Checks that a parameter has one value for each of `extent`.
inline void require_vector(const char* operation, const shape& parameter, const shape& x, std::int64_t extent) {
  require<error>(elements(parameter) == extent,
                 "{} of x {} with a parameter of {} (it needs one value for each of {}): make it ({})", operation,
                 text(x), text(parameter), extent, extent);
}

}  // namespace comp::native
