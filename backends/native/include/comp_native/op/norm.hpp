// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native {

/// Returns: the channels C of x (B,C,H,W) or (B,C). Throws: error.
inline std::int64_t channels(const char* operation, const shape& x) {
  require_some(operation, x);
  require<error>(x.size() == 4 || x.size() == 2, "{} of x {} (it takes (B,C,H,W) or (B,C)): reshape it", operation,
                 text(x));
  return x[1];
}

namespace op {

struct batch_norm {  // x (B,C,H,W) or (B,C), weight (C), bias (C), running mean (C), running variance (C)
  double eps = 1e-5;
  double momentum = 0.1;

  constexpr std::string_view kind() const { return "batch_norm"; }
  constexpr auto settings() const { return std::tuple{eps, momentum}; }
  shape output(std::span<const shape> x) const { return native::channels("batch_norm", x[0]), x[0]; }
  void cost(const cost_call& c) const { c.per_element(8); }
  auto forward(const auto& c) const {
    const auto& p = c.parameters;
    return c.keep_with_input(c.device.batch_norm(c.x[0], *p[0], *p[1], *p[2], *p[3], {eps, momentum, c.training}));
  }
  auto backward(const auto& c) const {
    const auto x = c.take_input();
    const auto& p = c.parameters;
    return c.gradients(c.device.batch_norm_backward(c.dy, x, c.left.kept, *p[0], *p[1], {eps, momentum, true}));
  }
};

struct layer_norm {  // x (...,C), weight (C), bias (C)
  double eps = 1e-5;

  constexpr std::string_view kind() const { return "layer_norm"; }
  constexpr auto settings() const { return std::tuple{eps}; }
  shape output(std::span<const shape> x) const { return x[0]; }
  void cost(const cost_call& c) const { c.per_element(8); }
  auto forward(const auto& c) const {
    return c.keep_with_input(c.device.layer_norm(c.x[0], *c.parameters[0], *c.parameters[1], eps));
  }
  auto backward(const auto& c) const {
    const auto x = c.take_input();
    return c.gradients(c.device.layer_norm_backward(c.dy, x, c.left.kept, *c.parameters[0], *c.parameters[1], eps));
  }
};

}  // namespace op
}  // namespace comp::native
