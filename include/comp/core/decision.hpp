// SPDX-License-Identifier: Apache-2.0
// A policy's answer for one operator: its category, and the precisions it gets when it is lowered.
#pragma once

#include <comp/core/precision.hpp>
#include <cstdint>
#include <string_view>

namespace comp {

/// The categories of operators that AMP systems tell apart: the union of PyTorch's, TensorFlow's, Paddle's and TVM's.
/// `allow` is the paper's whitelist, `deny` its blacklist; the paper's Stage1_OP_list holds the operators of both.
enum class category : std::uint8_t {
  allow,   // safe and fast in low precision: always lowered (PyTorch lower_precision_fp, TVM ALLOW, Paddle white)
  infer,   // runs in the widest precision of its inputs (PyTorch promote; TensorFlow's infer list)
  follow,  // the policy has no opinion: runs in the precision of its inputs (all unlisted operators; TVM FOLLOW)
  deny,    // its results easily overflow or lose accuracy: kept in FP32 (PyTorch fp32, TVM DENY, Paddle black)
  clear    // only moves data, so that any precision does (TensorFlow)
};

constexpr std::string_view name(category c) {
  constexpr std::string_view names[] = {"allow", "infer", "follow", "deny", "clear"};
  return names[static_cast<std::size_t>(c)];
}

/// What a policy answers for an operator. The three precisions can differ: a Tensor Core multiplies FP16, sums in FP32
/// and writes FP16, and Paddle adds a convolution's bias in FP32 behind a product in FP16.
struct decision {
  comp::category category = comp::category::follow;
  precision compute = precision::fp32;     // the format of its inputs when it is lowered
  precision accumulate = precision::fp32;  // the format of its sums
  precision output = precision::fp32;      // the format of its result
  bool fixed = false;                      // true: the operator stays in `compute`, and no search tries another
  friend bool operator==(const decision&, const decision&) = default;
};

}  // namespace comp
