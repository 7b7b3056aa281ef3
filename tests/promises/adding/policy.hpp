// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp/core/decision.hpp>
#include <comp/core/op_info.hpp>

namespace comp::policy {

/// BF16 for linear layers, FP32 for the rest.
struct added {
  decision classify(const op_info& op) const {
    if (op.kind != "linear") return {.category = category::deny, .fixed = true};
    return {.category = category::allow, .compute = precision::bf16, .output = precision::bf16};
  }
};

}  // namespace comp::policy
