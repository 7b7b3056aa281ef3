// SPDX-License-Identifier: Apache-2.0
// What every Device, and every model that is being built, asks of the arguments of an operator, in the same words.
// Throws, all of them: error, with the shapes that do not fit.
// Not here: what one operator alone asks (op/), or one Device.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_native/device.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

namespace comp::native {

/// "(64,3,32,32)". Made at each call for messages that hardly anyone will read: without a parser and, when short,
/// without memory.
inline std::string text(const shape& extents) {
  std::string made{"("};
  for (const std::int64_t extent : extents) {
    if (made.size() > 1) made += ',';
    const fmt::format_int digits{extent};
    made.append(digits.data(), digits.size());
  }
  return made += ')';
}

inline void require_some(const char* operation, const shape& s) {
  require<error>(std::ranges::all_of(s, [](auto extent) { return extent > 0; }),
                 "{} of a tensor of shape {} (it has no elements): leave out empty batches", operation, text(s));
}
inline void require_same(const char* operation, const shape& a, const shape& b) {
  require<error>(a == b, "{} of {} and {} (the shapes must be equal): reshape one of them", operation, text(a),
                 text(b));
}
/// Of a parameter that has one value for each of `extent`.
inline void require_vector(const char* operation, const shape& parameter, const shape& x, std::int64_t extent) {
  require<error>(elements(parameter) == extent,
                 "{} of x {} with a parameter of {} (it needs one value for each of {}): make it ({})", operation,
                 text(x), text(parameter), extent, extent);
}

}  // namespace comp::native
