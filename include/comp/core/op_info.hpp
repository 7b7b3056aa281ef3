// SPDX-License-Identifier: Apache-2.0
// What comp knows of one operator of a forward pass. A backend fills it in; policies and strategies only read it.
// Light on purpose: a graph of 10^5 operators must fit in 200 MB.
// Not here: the operator's position (its index in op_graph) and how it is executed (the backend's own business).
#pragma once

#include <algorithm>
#include <comp/core/precision.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// A tensor that an operator reads or writes.
struct tensor_info {
  std::vector<std::int64_t> shape = {};  // elements per axis
  precision dtype = precision::fp32;     // as recorded, before any plan; meaningless where `floating` is false
  bool floating = true;                  // false: integers (indices, labels), which no plan touches
  bool parameter = false;                // a weight of the model: no operator makes it
  std::int32_t source = -1;              // of an input: index of the operator that made it; -1: none did, or not known
  std::int32_t leaf = -1;                // of an input that none made: which parameter or datum of the model, the same
                                         // number for the same tensor (tied weights); -1: not known
};

/// What the author of a model has decided of an operator in the model's own code, which no plan changes.
enum class author_choice : std::uint8_t {
  none,
  autocast_off,  // the block around it switches autocast off: FP32
  autocast_on    // the block around it is an autocast of its own, which runs it
};

/// "none", "autocast off", "autocast on".
constexpr std::string_view name(author_choice c) {
  constexpr std::string_view names[] = {"none", "autocast off", "autocast on"};
  return names[static_cast<std::size_t>(c)];
}
/// Why such an operator has its precision, in words.
constexpr std::string_view reason(author_choice c) {
  constexpr std::string_view reasons[] = {"", "the model's author switched autocast off there",
                                          "the model's author runs an autocast there, which decides"};
  return reasons[static_cast<std::size_t>(c)];
}

/// An operator of a forward pass.
struct op_info {
  std::string name = {};                    // unique in its graph: "features.0", "block1.attention.query"
  std::string kind = {};                    // ATen's name, with or without "aten::": "conv2d", "aten::addmm"
  std::vector<std::string> scopes = {};     // tags to tie or select by: "block1", "attention"; outermost first
  std::vector<tensor_info> inputs = {};     // activations and parameters
  std::vector<tensor_info> outputs = {};    // what it makes
  std::vector<std::size_t> producers = {};  // indices of the operators whose outputs this one reads, each below its own

  // The contraction sizes that decide tensor-core use; 0 where the operator has none or they are unknown.
  std::int64_t m = 0, n = 0, k = 0;                // of the matrix product C(m,n) = A(m,k) B(k,n)
  std::int64_t channels_in = 0, channels_out = 0;  // of a convolution

  std::int64_t bytes = 0;  // read and written by one forward in FP32
  std::int64_t flops = 0;  // of one forward; a multiply-add counts 2

  bool hands_on_fp32 = false;  // whatever it computes in, what reads it gets FP32 (code that the backend does not see)
  bool choosable = true;  // false: a view, an in-place write, an integer operator: its precision is not ours to choose
  author_choice author = author_choice::none;  // other than none: it would be choosable, were it not for its author
};

/// Whether the operator computes in a precision of its own, instead of handing on what it reads.
inline bool computes(const op_info& op) { return op.choosable || op.author != author_choice::none; }

/// How much an operator does: operations, or bytes at the 16 operations that machines do per byte.
inline double work_of(const op_info& op) {
  return std::max(static_cast<double>(op.flops), 16 * static_cast<double>(op.bytes));
}

}  // namespace comp
