// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native {

/// Checks that x is (...,T,T). Throws: error.
inline void require_causal(const shape& x) {
  require<error>(x.size() >= 2 && x[x.size() - 1] == x[x.size() - 2],
                 "softmax of x {}, causal (the last two sizes must be equal): leave the mask out or fix the shape",
                 text(x));
}

/// Checks `count` lengths from `least` to `most` for the examples of x (B,...,T). Throws: error.
inline void require_lengths(const shape& x, std::int64_t count, std::int64_t least, std::int64_t most) {
  require<error>(
      !x.empty() && count == x[0] && least >= 0 && most <= x.back(),
      "softmax of x {} with {} lengths from {} to {} (one for each example, from 0 to the last size): fix them",
      text(x), count, least, most);
}

namespace op {

enum class softmax_mask : std::uint8_t {
  none,
  causal,  // of x (...,T,T), columns beyond the row
  padding  // of x (B,...,T), columns beyond the example's length; only for models that read segments
};

struct softmax {
  softmax_mask mask = softmax_mask::none;

  constexpr bool reads_lengths() const { return mask == softmax_mask::padding; }
  constexpr std::string_view kind() const { return "softmax"; }
  constexpr auto settings() const { return std::tuple{mask}; }
  shape output(std::span<const shape> x) const {
    if (mask == softmax_mask::causal) require_causal(x[0]);
    return x[0];
  }
  void cost(const cost_call& c) const { c.per_element(5); }
  /// Returns the softmax of x with this mask.
  auto of(const auto& c, const auto& x) const {
    return mask == softmax_mask::padding ? c.device.padded_softmax(x, c.batch.lengths)
                                         : c.device.softmax(x, mask == softmax_mask::causal);
  }
  auto forward(const auto& c) const { return c.keep(of(c, c.x[0])); }
  auto backward(const auto& c) const {
    return c.gradients(c.device.softmax_backward(c.dy, c.kept(0), mask == softmax_mask::causal));
  }
};

struct log_softmax {
  constexpr std::string_view kind() const { return "log_softmax"; }
  shape output(std::span<const shape> x) const { return x[0]; }
  void cost(const cost_call& c) const { c.per_element(5); }
  auto forward(const auto& c) const { return c.keep(c.device.log_softmax(c.x[0])); }
  auto backward(const auto& c) const { return c.gradients(c.device.log_softmax_backward(c.dy, c.kept(0))); }
};

}  // namespace op
}  // namespace comp::native
