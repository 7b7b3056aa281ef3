// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>
#include <comp_native/random.hpp>

namespace comp::native::op {

struct activate {
  activation function = activation::relu;

  constexpr std::string_view kind() const { return traits(function).name; }
  constexpr auto settings() const { return std::tuple{function}; }
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
  constexpr auto settings() const { return std::tuple{p}; }
  constexpr bool draws() const { return p > 0; }
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
  constexpr std::string_view kind() const {
    return "aten::mul";
  }  // with its namespace: Paddle's mul multiplies matrices
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

/// x (B,T,C) -> (B,C,T). Padding gets such a low number that a softmax over T gives it no share. Only for models that
/// read segments, since those mark padding.
struct masked_columns {
  static constexpr float low = -1e4F;  // FP16 can hold it, too

  constexpr bool reads_lengths() const { return true; }
  constexpr std::string_view kind() const { return "masked_fill"; }
  shape output(std::span<const shape> x) const {
    require<error>(x[0].size() == 3, "masked columns of {} (it takes (B,T,C)): reshape it", text(x[0]));
    return {x[0][0], x[0][2], x[0][1]};
  }
  void cost(const cost_call& c) const { c.per_element(1); }
  auto forward(const auto& c) const {
    const shape s = c.x[0].shape();
    const auto columns = c.device.reshape(c.device.split_heads(c.x[0], s[2]), {s[0], s[2], s[1]});
    return c.device.add(columns, c.in_precision(c.batch.hidden));
  }
  auto backward(const auto& c) const {
    const shape s = c.dy.shape();
    return c.gradients(c.device.merge_heads(c.device.reshape(c.dy, {s[0], s[1], s[2], 1})));
  }
};

/// Normal random numbers (B,width), other ones in each step. In an evaluation a batch always gets the same ones, so
/// that scores can be compared.
struct noise {
  std::int64_t batch = 0;
  std::int64_t width = 0;

  constexpr std::string_view kind() const { return "randn"; }
  constexpr bool draws() const { return true; }
  shape output(std::span<const shape>) const {
    require<error>(width > 0, "noise of {} numbers (at least one): change it", width);
    return {batch, width};
  }
  void cost(const cost_call& c) const {
    c.info.choosable = false;
    c.info.bytes = 4 * elements(c.output);
  }
  /// A Device may have T normal(dropout_key, shape, precision), which has to give the same bits.
  auto forward(const auto& c) const {
    const shape size{c.batch.size, width};
    if constexpr (requires { c.device.normal(c.left.key, size, c.precision); }) {
      return c.device.normal(c.left.key, size, c.precision);
    } else {
      random_stream draws{c.left.key.seed, c.left.key.draw};
      std::vector<float> numbers(static_cast<std::size_t>(elements(size)));
      for (float& number : numbers) number = static_cast<float>(draws.normal());
      return c.device.upload(std::span<const float>{numbers}, size, c.precision);
    }
  }
  auto backward(const auto& c) const { return c.gradients(); }
};

struct detach {  // x without its gradient: a later phase of a step reads an earlier one's results through it
  static constexpr bool is_view = true;
  constexpr std::string_view kind() const { return "detach"; }
  shape output(std::span<const shape> x) const { return x[0]; }
  void cost(const cost_call& c) const {
    c.info.choosable = false;
    c.info.bytes = 0;
  }
  auto forward(const auto& c) const { return c.x[0]; }
  auto backward(const auto& c) const { return c.gradients(); }
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
