// SPDX-License-Identifier: Apache-2.0
// Recognises the casts that a model itself contains: PyTorch's x.float(), Paddle's and TVM's cast, TensorFlow's Cast.
// Such a cast keeps its target format under every plan, because the model's author asked for it; a plan cannot choose
// it.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/op_info.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/kind_name.hpp>
#include <optional>
#include <string_view>
#include <utility>

namespace comp::autocast {

/// True for x.type_as(y) and x.to(y), whose result has the format of y, their second input.
inline bool casts_as_other(const op_info& op) {
  const std::string_view kind = policy::without_namespace(op.kind);
  return (kind == "type_as" || kind == "to.other") && op.inputs.size() > 1;
}

/// Returns: the format that `op` casts to; nothing if it is no cast to a floating-point format. x.to(dtype) counts as a
/// cast even if x has that dtype already, since under a plan x may have another one; x.to(device) does not count.
/// Operators with an argument for the format of their result (softmax(x, dtype=float)) convert what they read, so they
/// count, too. If the graph does not say which format comes out, only a kind such as "half" tells.
inline std::optional<precision> cast_target(const op_info& op) {
  constexpr std::array<std::pair<std::string_view, precision>, 4> named{{{"double", precision::fp64},
                                                                         {"float", precision::fp32},
                                                                         {"half", precision::fp16},
                                                                         {"bfloat16", precision::bf16}}};
  constexpr std::array<std::string_view, 3> always{"to.dtype", "cast", "Cast"};
  constexpr std::array<std::string_view, 3> sometimes{"to", "_to_copy", "type"};
  const std::string_view kind = policy::without_namespace(op.kind), bare = policy::without_overload(kind);
  if (!op.outputs.empty() && !op.outputs.front().floating) return std::nullopt;
  for (const auto& [name, to] : named) {
    if (kind == name) return to;
  }
  if (casts_as_other(op) && op.inputs[1].source < 0 && (op.producers.empty() || op.inputs[0].source >= 0))
    return op.inputs[1].dtype;  // y is a parameter or data, whose format no plan changes
  if (op.outputs.empty()) return std::nullopt;
  const precision to = op.outputs.front().dtype;
  if (op.asks_format) return to;
  if (std::find(always.begin(), always.end(), kind) != always.end()) return to;
  if (op.inputs.empty() || std::find(sometimes.begin(), sometimes.end(), bare) == sometimes.end()) return std::nullopt;
  const bool changes = !op.inputs.front().floating || op.inputs.front().dtype != to;
  return changes ? std::optional{to} : std::nullopt;
}

}  // namespace comp::autocast
