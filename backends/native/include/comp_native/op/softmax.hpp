// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native {

/// Throws: error.
inline void require_causal(const shape& x) {
  require<error>(x.size() >= 2 && x[x.size() - 1] == x[x.size() - 2],
                 "softmax of x {}, causal (the last two sizes must be equal): leave the mask out or fix the shape",
                 text(x));
}

namespace op {

struct softmax {
  bool causal = false;

  constexpr std::string_view kind() const { return "softmax"; }
  shape output(std::span<const shape> x) const {
    if (causal) require_causal(x[0]);
    return x[0];
  }
  void cost(const cost_call& c) const { c.per_element(5); }
  auto forward(const auto& c) const { return c.keep(c.device.softmax(c.x[0], causal)); }
  auto backward(const auto& c) const { return c.gradients(c.device.softmax_backward(c.dy, c.kept(0), causal)); }
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
