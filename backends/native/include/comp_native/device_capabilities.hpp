// SPDX-License-Identifier: Apache-2.0
// What a Device says about itself by optional members, as functions with a default for a Device that lacks the member.
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/core/error.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp_native/device.hpp>
#include <concepts>
#include <cstddef>
#include <vector>

namespace comp::native {

std::vector<precision> precisions_of(const Device auto& device) {
  if constexpr (requires { device.supported_precisions(); }) return device.supported_precisions();
  return {precision::fp32, precision::bf16, precision::fp16};
}

/// Returns whether the Device runs `op` in `p`; true if it does not say. Requires: `p` is one of precisions_of().
template <Device D>
bool runs_in(const D& device, const op_info& op, precision p) {
  if (op.is_state) return p == precision::fp32 || (p == precision::bf16 && KeepsMoments<D>);
  if constexpr (requires {
                  { device.supports(op, p) } -> std::same_as<bool>;
                })
    return device.supports(op, p);
  return true;
}

/// Throws: `plan_error` for a plan with a precision that the Device lacks, or in which it does not run an operator.
void require_runs(const Device auto& device, const op_graph& graph, const plan& p) {
  const std::vector<precision> known = precisions_of(device);
  for (std::size_t i = 0; i < p.size(); ++i) {
    require<plan_error>(std::find(known.begin(), known.end(), p[i]) != known.end(),
                        "plan gives operator {} {} (this device computes in {}): choose one of those", i, name(p[i]),
                        names_of(known));
  }
  for (std::size_t i = 0; i < std::min(p.size(), graph.size()); ++i) {
    const op_info& op = graph[i];
    require<plan_error>(!op.choosable || runs_in(device, op, p[i]),
                        "plan gives operator {} (\"{}\") {} (this device does not run {} in it): choose another", i,
                        op.name, name(p[i]), op.kind);
  }
}

comp::hardware hardware_of(const Device auto& device) {
  if constexpr (requires {
                  { device.hardware() } -> std::convertible_to<comp::hardware>;
                })
    return device.hardware();
  return {};
}

/// Returns the time on the Device's own clock, which a Device of tests has, or else on the wall clock. Unit: [s].
double seconds_of(const Device auto& device) {
  if constexpr (requires {
                  { device.seconds() } -> std::same_as<double>;
                })
    return device.seconds();
  return comp::detail::clock_seconds();
}

}  // namespace comp::native
