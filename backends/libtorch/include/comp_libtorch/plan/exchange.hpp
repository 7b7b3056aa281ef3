// SPDX-License-Identifier: Apache-2.0
// The exchange of gradients among the ranks of a data-parallel training, as one more operator of the graph, so that a
// plan says in which format gradients travel. It is done in the backward, by DistributedDataParallel or by an
// all-reduce of the user's own. It is one operator for all gradients, because buckets differ from machine to
// machine, and a plan file has to fit the next one.
#pragma once

#include <comp/core/op_info.hpp>
#include <comp/core/precision.hpp>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace comp::libtorch {

inline constexpr std::string_view exchange_kind = "all_reduce";

inline bool is_exchange(const op_info& op) { return op.kind == exchange_kind; }

namespace detail {

/// Returns: the operator that exchanges the gradients of the parameters that `forward` reads. It reads no tensor of the
/// forward, so no cast between operators depends on its precision. Its bytes count tied parameters more than once.
inline op_info exchange_operator(const std::vector<op_info>& forward) {
  op_info exchange{
      .name = "gradients." + std::string{exchange_kind}, .kind = std::string{exchange_kind}, .hands_on_fp32 = true};
  for (const op_info& op : forward) {
    for (const tensor_info& read : op.inputs) {
      if (!read.parameter) continue;
      exchange.bytes += 8 * std::accumulate(read.shape.begin(), read.shape.end(), std::int64_t{1}, std::multiplies{});
    }
  }
  return exchange;
}

/// Returns: about how far rounding to `low` takes a gradient from its value, relative to it.
inline double rounding_error(precision low) { return low == precision::fp16 ? 0x1p-12 : 0x1p-9; }

}  // namespace detail

}  // namespace comp::libtorch
