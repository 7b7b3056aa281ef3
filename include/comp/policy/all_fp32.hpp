// SPDX-License-Identifier: Apache-2.0
// Keeps every operator in FP32, in the search too. The template for a policy of one's own: copy it, and let `classify`
// decide by what `op` tells: kind, name, scopes, shapes, contraction sizes.
// Use to measure what the framework itself costs: the search finds nothing to try and the outcome is the FP32 plan.
#pragma once

#include <comp/core/decision.hpp>
#include <comp/core/op_info.hpp>

namespace comp::policy {

struct all_fp32 {  // models comp::OperatorPolicy
  constexpr decision classify(const op_info& /*op*/) const { return {.category = category::deny, .fixed = true}; }
};

}  // namespace comp::policy
