// SPDX-License-Identifier: Apache-2.0
// A typed plan is a plan with the formats of its tensors: what each operator's kernel writes, what its readers get, and
// how its parameters are stored. The rules of other systems need that, since for instance TVM lets an operator compute
// in FP16, sum in FP32 and hand on FP16.
// Use `typed` for a plan of a search, in which an operator writes and hands on the precision that it computes in.
#pragma once

#include <algorithm>
#include <array>
#include <comp/autocast/own_casts.hpp>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/kind_name.hpp>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace comp::autocast {

/// Each vector has an entry for each operator. If `written` and `handed_on` differ, a cast behind the operator makes
/// the one out of the other: a backend may have to write an FP32 sum before it can be FP16.
struct typed_plan {
  comp::plan plan = {};                    // the precision that it computes in
  std::vector<precision> written = {};     // the format that its kernel writes
  std::vector<precision> handed_on = {};   // the format that its readers get
  std::vector<precision> parameters = {};  // how its parameters are stored between steps; not FP32 only in Paddle's O2
  friend bool operator==(const typed_plan&, const typed_plan&) = default;
};

/// Returns: the leaves of operator `i`, which are those floating-point inputs that no operator made: parameters and the
/// model's data. Empty if the inputs are unknown. If the graph does not say which operator made which input, each
/// producer is taken to have made the first input that has the shape of one of its outputs and is not marked as a
/// parameter.
inline std::vector<std::size_t> leaf_inputs(const op_graph& graph, std::size_t i) {
  const auto& inputs = graph[i].inputs;
  std::vector<bool> produced(inputs.size());
  for (std::size_t k = 0; k < inputs.size(); ++k) produced[k] = inputs[k].source >= 0;
  const bool known = std::find(produced.begin(), produced.end(), true) != produced.end();
  for (const std::size_t producer : graph[i].producers) {
    const auto& outputs = graph[producer].outputs;
    const auto fits = [&](const tensor_info& in) {
      return outputs.empty() || std::any_of(outputs.begin(), outputs.end(), [&](const tensor_info& out) {
               return out.shape == in.shape && out.floating == in.floating;
             });
    };
    std::size_t k = 0;
    while (k < inputs.size() && (produced[k] || inputs[k].parameter || !fits(inputs[k]))) ++k;
    if (!known && k < inputs.size()) produced[k] = true;
  }
  std::vector<std::size_t> leaves;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!produced[k] && inputs[k].floating) leaves.push_back(k);
  }
  return leaves;
}

/// True if a leaf is the model's data and no parameter. If any input of the operator has a mark (`parameter`,
/// `source`), the mark decides; otherwise only the first input of an operator without a producer is data.
inline bool is_data(const op_graph& graph, std::size_t i, std::size_t input) {
  if (graph[i].inputs[input].parameter) return false;
  const auto& inputs = graph[i].inputs;
  const bool marked =
      std::any_of(inputs.begin(), inputs.end(), [](const tensor_info& t) { return t.parameter || t.source >= 0; });
  return marked || (input == 0 && graph[i].producers.empty());
}

/// True for kinds that only rearrange elements, so that a cast gives the same values before them and behind them.
constexpr bool moves_only(std::string_view kind) {
  // clang-format off
  constexpr std::array<std::string_view, 40> kinds{
      "alias", "as_strided", "broadcast_to", "chunk", "contiguous", "detach", "diagonal", "expand", "expand_as",
      "flatten", "hsplit", "mH", "mT", "matrix_H", "movedim", "narrow", "permute", "ravel", "reshape", "reshape_as",
      "select", "slice", "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split",
      "transpose", "transpose_", "unbind", "unflatten", "unfold", "unsafe_chunk", "unsafe_split", "unsqueeze", "view",
      "view_as", "vsplit"};
  // clang-format on
  return std::binary_search(kinds.begin(), kinds.end(), policy::without_overload(kind));
}

namespace detail {

/// Returns the operators whose floating-point results decide what operator `i`, which has no precision of its own,
/// hands on. For an in-place write only the tensor that it writes decides, for x.type_as(y) only y, else all producers.
inline std::vector<std::size_t> float_sources(const op_graph& graph, std::size_t i) {
  const op_info& op = graph[i];
  if (policy::without_overload(op.kind).ends_with('_') && !op.inputs.empty() && op.inputs[0].source >= 0)
    return {static_cast<std::size_t>(op.inputs[0].source)};
  if (casts_as_other(op) && op.inputs[1].source >= 0) return {static_cast<std::size_t>(op.inputs[1].source)};
  std::vector<std::size_t> sources;
  for (const std::size_t from : op.producers) {
    if (gives_floats(graph[from])) sources.push_back(from);
  }
  return sources;
}

}  // namespace detail

/// A carrier is an operator without a precision of its own (a view, an in-place write): it hands on the format that it
/// reads. True if `i` is one.
inline bool is_carrier(const op_graph& graph, std::size_t i) {
  return !computes(graph[i]) && detail::gives_floats(graph[i]) && !cast_target(graph[i]) &&
         !detail::float_sources(graph, i).empty();
}

namespace detail {

/// Returns the format that operator `i`, a carrier, hands on: the widest that it reads.
inline precision carried_on(const op_graph& graph, const std::vector<precision>& handed, std::size_t i) {
  const std::vector<std::size_t> sources = float_sources(graph, i);
  precision met = handed[sources.front()];
  for (const std::size_t from : sources) met = promoted(met, handed[from]);
  return met;
}

}  // namespace detail

/// Makes a typed plan in which each operator writes and hands on the precision that it computes in (FP32 for TF32).
/// Carriers hand on the format that they read, and casts of the model's own their target; a cast that the plan lowers
/// gives the low precision at once.
/// Throws: `plan_error` when `p` does not fit `graph`.
inline typed_plan typed(const op_graph& graph, const plan& p) {
  require_fits(p, graph);
  typed_plan types{.plan = p, .handed_on = std::vector<precision>(graph.size(), precision::fp32)};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const std::optional<precision> to = cast_target(graph[i]);
    types.handed_on[i] = to && !is_lowered(graph[i], p[i]) ? *to
                         : is_carrier(graph, i)            ? detail::carried_on(graph, types.handed_on, i)
                                                           : handed_on(p[i]);
  }
  types.written = types.handed_on;
  const plan own = as_written(graph);
  types.parameters.assign(own.begin(), own.end());
  return types;
}

}  // namespace comp::autocast
