// SPDX-License-Identifier: Apache-2.0
// A policy that keeps every operator in FP32, in a search too.
// Use it to measure what the framework itself costs, since a search with it has nothing to try and returns the FP32
// plan; and as the template for a policy of your own: copy it, and let `classify` decide by the operator's kind, name,
// scopes, shapes and contraction sizes.
#pragma once

#include <comp/core/decision.hpp>
#include <comp/core/op_info.hpp>

namespace comp::policy {

struct all_fp32 {  // models comp::OperatorPolicy
  constexpr decision classify(const op_info& /*op*/) const { return {.category = category::deny, .fixed = true}; }
};

}  // namespace comp::policy
