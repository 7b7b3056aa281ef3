// SPDX-License-Identifier: Apache-2.0
// What an operator policy says of one operator.
#pragma once

#include <comp/core/precision.hpp>
#include <cstdint>
#include <string_view>

namespace comp {

/// The union of the categories that AMP systems use.
enum class category : std::uint8_t {
  allow,   // safe and fast in low precision: always lowered (PyTorch lower_precision_fp, TVM ALLOW, Paddle white)
  infer,   // promoted to its widest input (PyTorch promote); TensorFlow's infer list
  follow,  // no opinion: runs in the precision of its inputs (everything unlisted; TVM FOLLOW)
  deny,    // numerically delicate: kept in FP32 (PyTorch fp32, TVM DENY, Paddle black)
  clear    // moves data only, may run in anything (TensorFlow)
};

constexpr std::string_view name(category c) {
  constexpr std::string_view names[] = {"allow", "infer", "follow", "deny", "clear"};
  return names[static_cast<std::size_t>(c)];
}

struct decision {
  comp::category category = comp::category::follow;
  precision compute = precision::fp32;     // what the operator computes in when it is lowered
  precision accumulate = precision::fp32;  // what its sums are kept in
  precision output = precision::fp32;      // what it hands on
  bool fixed = false;                      // true: stays in `compute`; no search tries anything else
  friend bool operator==(const decision&, const decision&) = default;
};

}  // namespace comp
