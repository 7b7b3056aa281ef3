// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native {

/// Checks the shapes of a convolution; `bias` is null if there is none. Returns: (B,O,H',W'). Throws: error.
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
  shape y{x[0], weights[0], 0, 0};
  for (std::size_t i = 0; i < 2; ++i) {
    require<error>(
        weights[i + 2] > 0 && o.stride[i] > 0 && o.dilation[i] > 0 && o.padding[i] >= 0,
        "conv2d with weights {}, stride {}, dilation {} and padding {} (all but the padding must be positive): "
        "change them",
        text(weights), o.stride[i], o.dilation[i], o.padding[i]);
    const std::int64_t room = x[i + 2] + 2 * o.padding[i] - o.dilation[i] * (weights[i + 2] - 1) - 1;
    require<error>(
        room >= 0,
        "conv2d of x {} with weights {} (the kernel is larger than the padded image): pad more or use a smaller kernel",
        text(x), text(weights));
    y[i + 2] = room / o.stride[i] + 1;
  }
  return y;
}

namespace op {

struct conv2d {  // x (B,C,H,W), weight (O,C/groups,R,S)[, bias (O)]
  std::int64_t channels = 0;
  std::array<std::int64_t, 2> kernel = {3, 3};
  conv2d_options options = {};
  bool bias = true;

  constexpr std::string_view kind() const { return "conv2d"; }
  constexpr auto settings() const {
    return std::tuple{options.stride, options.padding, options.dilation, options.groups};
  }
  shape output(std::span<const shape> x) const {
    require<error>(x[0].size() == 4, "conv2d of x {} (it takes (B,C,H,W)): reshape it", text(x[0]));
    require<error>(channels > 0 && options.groups > 0,
                   "conv2d with {} channels in {} groups (at least one of each): change them", channels,
                   options.groups);
    require<error>(x[0][1] % options.groups == 0 && channels % options.groups == 0,
                   "conv2d in {} groups of {} channels in and {} out (both must be multiples of it): change one",
                   options.groups, x[0][1], channels);
    return convolved(x[0], {channels, x[0][1] / options.groups, kernel[0], kernel[1]}, nullptr, options);
  }
  /// A convolution counts as the matrix product that it is: m = B H' W', n = channels out, k = channels in of a group
  /// times the size of the kernel.
  void cost(const cost_call& c) const {
    const std::int64_t k = c.parameters[0][1] * c.parameters[0][2] * c.parameters[0][3];
    c.matrix(options.groups, c.output[0] * c.output[2] * c.output[3], channels / options.groups, k);
    c.info.channels_in = c.inputs[0][1];
    c.info.channels_out = channels;
    if (bias) c.info.flops += elements(c.output);
  }
  auto forward(const auto& c) const {
    c.left.kept = {c.x[0]};
    return c.device.conv2d(c.x[0], *c.parameters[0], c.bias(), options);
  }
  auto backward(const auto& c) const {
    return c.gradients(c.device.conv2d_backward(c.dy, c.kept(0), *c.parameters[0], c.bias(), options, c.need[0]));
  }
};

}  // namespace op
}  // namespace comp::native
