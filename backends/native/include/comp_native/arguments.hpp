// SPDX-License-Identifier: Apache-2.0
// What every Device asks of the arguments of an operator, in the same words, and the shape of what it gives.
// Throws, all of them: error, with the shapes that do not fit.
// Not here: what one Device alone asks; shapes of a model that is being built (shape_rules.hpp).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <comp_native/device.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

namespace comp::native {

/// "(64,3,32,32)".
inline std::string text(const shape& extents) {
  std::string all;
  for (const auto extent : extents) all += fmt::format("{}{}", all.empty() ? "" : ",", extent);
  return "(" + all + ")";
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

/// Of (B,C,H,W) or (B,C). Returns: C.
inline std::int64_t channels(const char* operation, const shape& x) {
  require_some(operation, x);
  require<error>(x.size() == 4 || x.size() == 2, "{} of x {} (it takes (B,C,H,W) or (B,C)): reshape it", operation,
                 text(x));
  return x[1];
}

/// bias: null where there is none.
inline void require_linear(const shape& x, const shape& weights, const shape* bias) {
  require_some("linear", x);
  const std::int64_t last = x.empty() ? 0 : x.back();
  require<error>(weights.size() == 2 && last == weights[1],
                 "linear of x {} with weights {} (the last sizes must be equal): make the weights (N,{})", text(x),
                 text(weights), last);
  require<error>(!bias || *bias == shape{weights[0]},
                 "linear with weights {} and a bias of {} (the first sizes must be equal): make the bias ({})",
                 text(weights), bias ? text(*bias) : "", weights[0]);
}

/// Returns: (B,O,H',W').
inline shape convolved(const shape& x, const shape& weights, const shape* bias, const conv2d_options& o) {
  require_some("conv2d", x);
  require<error>(
      x.size() == 4 && weights.size() == 4 && o.groups > 0 && x[1] == weights[1] * o.groups &&
          weights[0] % o.groups == 0,
      "conv2d of x {} with weights {} in {} groups (they must be (B,C,H,W) and (O,C/groups,R,S)): fix the shapes",
      text(x), text(weights), o.groups);
  require<error>(!bias || *bias == shape{weights[0]},
                 "conv2d with weights {} and a bias of {} (the first sizes must be equal): make the bias ({})",
                 text(weights), bias ? text(*bias) : "", weights[0]);
  const auto extent = [&](std::size_t axis) {
    const std::int64_t span = x[axis + 2] + 2 * o.padding[axis] - o.dilation[axis] * (weights[axis + 2] - 1) - 1;
    return span < 0 ? 0 : span / o.stride[axis] + 1;
  };
  shape y{x[0], weights[0], extent(0), extent(1)};
  require<error>(
      elements(y) > 0,
      "conv2d of x {} with weights {} (the kernel is larger than the padded image): pad more or use a smaller kernel",
      text(x), text(weights));
  return y;
}

/// Returns: (B,C,H',W').
inline shape pooled(const char* operation, const shape& x, const pool2d_options& o) {
  require_some(operation, x);
  require<error>(x.size() == 4, "{} of x {} (it takes (B,C,H,W)): reshape it", operation, text(x));
  for (std::size_t i = 0; i < 2; ++i) {
    require<error>(
        o.stride[i] > 0 && 2 * o.padding[i] <= o.kernel[i],
        "{} with kernel {}, stride {} and padding {} (a window may not lie in the padding alone): pad by at most half the kernel",
        operation, o.kernel[i], o.stride[i], o.padding[i]);
    require<error>(x[i + 2] + 2 * o.padding[i] >= o.kernel[i],
                   "{} of x {} with a kernel of {} (it is larger than the padded image): use a smaller kernel",
                   operation, text(x), o.kernel[i]);
  }
  const auto extent = [&](std::size_t i) { return (x[i + 2] + 2 * o.padding[i] - o.kernel[i]) / o.stride[i] + 1; };
  return {x[0], x[1], extent(0), extent(1)};
}

inline void require_bins(const shape& x, const std::array<std::int64_t, 2>& size) {
  require_some("adaptive_avg_pool2d", x);
  require<error>(x.size() == 4 && size[0] > 0 && size[1] > 0,
                 "adaptive_avg_pool2d of x {} to {}x{} (it takes (B,C,H,W) and a positive size): fix the sizes",
                 text(x), size[0], size[1]);
}
/// True where the bins are windows that do not overlap: those of bin_windows().
inline bool even_bins(const shape& x, const std::array<std::int64_t, 2>& size) {
  return x[2] % size[0] == 0 && x[3] % size[1] == 0;
}
inline pool2d_options bin_windows(const shape& x, const std::array<std::int64_t, 2>& size) {
  const std::array<std::int64_t, 2> window{x[2] / size[0], x[3] / size[1]};
  return {.kernel = window, .stride = window};
}

inline void require_causal(const shape& x) {
  require<error>(x.size() >= 2 && x[x.size() - 1] == x[x.size() - 2],
                 "softmax of x {}, causal (the last two sizes must be equal): leave the mask out or fix the shape",
                 text(x));
}
/// (B,T,C). Returns: (B,heads,T,C/heads).
inline shape split(const shape& x, std::int64_t heads) {
  require_some("split_heads", x);
  require<error>(x.size() == 3 && heads > 0 && x[2] % heads == 0,
                 "split_heads of x {} into {} (it takes (B,T,C), C a multiple of the heads): fix the sizes", text(x),
                 heads);
  return {x[0], heads, x[1], x[2] / heads};
}
/// (B,H,T,D). Returns: (B,T,H*D).
inline shape merged(const shape& x) {
  require_some("merge_heads", x);
  require<error>(x.size() == 4, "merge_heads of x {} (it takes (B,H,T,D)): reshape it", text(x));
  return {x[0], x[2], x[1] * x[3]};
}

}  // namespace comp::native
