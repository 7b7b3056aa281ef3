// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native {

/// Checks the shapes of a linear layer; `bias` is null if there is none. Throws: error.
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

namespace op {

struct linear {  // x (...,K), weight (N,K)[, bias (N)] -> (...,N)
  std::int64_t units = 0;
  bool bias = true;

  constexpr std::string_view kind() const { return "linear"; }
  shape output(std::span<const shape> x) const {
    require<error>(units > 0, "linear with {} units (at least one): change it", units);
    require<error>(x[0].size() >= 2, "linear of x {} (it takes (B,...,K)): reshape it", text(x[0]));
    shape y = x[0];
    y.back() = units;
    return y;
  }
  void cost(const cost_call& c) const {
    c.matrix(1, elements(c.output) / units, units, c.inputs[0].back());
    if (bias) c.info.flops += elements(c.output);
  }
  auto forward(const auto& c) const {
    c.left.kept = {c.x[0]};
    return c.device.linear(c.x[0], *c.parameters[0], c.bias());
  }
  auto backward(const auto& c) const {
    return c.gradients(
        c.device.linear_backward(c.dy, c.kept(0), *c.parameters[0], c.bias(), c.need[0], c.need_parameters));
  }
};

}  // namespace op
}  // namespace comp::native
