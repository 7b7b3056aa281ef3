// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native::op {

struct activate {
  activation function = activation::relu;

  constexpr std::string_view kind() const { return traits(function).name; }
  shape output(std::span<const shape> x) const { return x[0]; }
  void cost(const cost_call& c) const { c.per_element(traits(function).flops); }
  auto forward(const auto& c) const {
    const auto y = c.device.activate(function, c.x[0]);
    c.left.kept = {traits(function).backward_reads_input ? c.x[0] : y};
    return y;
  }
  auto backward(const auto& c) const {
    return c.gradients(c.device.activate_backward(function, c.dy, c.kept(0), c.kept(0)));
  }
};

struct dropout {
  double p = 0.5;

  constexpr std::string_view kind() const { return "dropout"; }
  shape output(std::span<const shape> x) const {
    require<error>(p >= 0 && p < 1, "dropout with p = {} (it must be in [0, 1)): change it", p);
    return x[0];
  }
  void cost(const cost_call& c) const { c.per_element(2); }
  auto forward(const auto& c) const { return c.training && p > 0 ? c.device.dropout(c.x[0], p, c.left.key) : c.x[0]; }
  auto backward(const auto& c) const {
    return c.gradients(p > 0 ? c.device.dropout_backward(c.dy, p, c.left.key) : c.dy);
  }
};

struct add {
  constexpr std::string_view kind() const { return "add"; }
  shape output(std::span<const shape> x) const { return require_same("add", x[0], x[1]), x[0]; }
  void cost(const cost_call& c) const { c.per_element(1); }
  auto forward(const auto& c) const { return c.device.add(c.x[0], c.x[1]); }
  auto backward(const auto& c) const { return c.gradients(c.dy, c.dy); }
};

struct mul {
  constexpr std::string_view kind() const { return "aten::mul"; }  // Paddle's mul is another
  shape output(std::span<const shape> x) const { return require_same("mul", x[0], x[1]), x[0]; }
  void cost(const cost_call& c) const { c.per_element(1); }
  auto forward(const auto& c) const {
    c.left.kept = {c.x[0], c.x[1]};
    return c.device.mul(c.x[0], c.x[1]);
  }
  auto backward(const auto& c) const {
    auto dx = c.gradients();
    if (c.need[0]) dx[0] = c.device.mul(c.dy, c.kept(1));
    if (c.need[1]) dx[1] = c.device.mul(c.dy, c.kept(0));
    return dx;
  }
};

struct flatten {  // (B,...) -> (B,product)
  static constexpr bool is_view = true;
  constexpr std::string_view kind() const { return "flatten"; }
  shape output(std::span<const shape> x) const { return {x[0][0], elements(x[0]) / x[0][0]}; }
  void cost(const cost_call& c) const {
    c.info.choosable = false;
    c.info.bytes = 0;
  }
  auto forward(const auto& c) const {
    const shape s = c.x[0].shape();
    return c.device.reshape(c.x[0], {s[0], elements(s) / s[0]});
  }
  auto backward(const auto& c) const { return c.gradients(c.device.reshape(c.dy, c.left.input_shape)); }
};

}  // namespace comp::native::op
