// SPDX-License-Identifier: Apache-2.0
// A plan with the tensors it makes: what each operator's kernel writes, what its readers are given, and in what its
// parameters are stored. What the passes of this folder give, and what casts.hpp places casts for.
// Use `typed` for a plan of a search: there an operator writes and hands on what it computes in.
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

/// One entry per operator. Where `written` and `handed_on` differ (an FP32 accumulator with an FP16 output, on a
/// backend that cannot do both at once), a cast after the operator makes the one out of the other.
struct typed_plan {
  comp::plan plan = {};
  std::vector<precision> written = {};
  std::vector<precision> handed_on = {};
  std::vector<precision> parameters = {};  // as stored, between steps; FP32 but for models decorated for Paddle's O2
  friend bool operator==(const typed_plan&, const typed_plan&) = default;
};

/// The inputs of operator `i` that no operator of the graph gives: parameters, and the model's own inputs. Where the
/// graph does not say which operator made which input, a producer accounts for the first input that has the shape of
/// one of its outputs and is not marked as a parameter. Empty for an operator whose inputs are not known.
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

/// True where a leaf is the model's data and no parameter: it is not marked as one where the graph marks them, or it is
/// the first input of an operator that reads no other.
inline bool is_data(const op_graph& graph, std::size_t i, std::size_t input) {
  if (graph[i].inputs[input].parameter) return false;
  const auto& inputs = graph[i].inputs;
  const bool marked =
      std::any_of(inputs.begin(), inputs.end(), [](const tensor_info& t) { return t.parameter || t.source >= 0; });
  return marked || (input == 0 && graph[i].producers.empty());
}

/// True for kinds that only arrange what they read, so that a cast may stand before or behind them.
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

/// The operators whose floats `i` reads, but for an in-place write only the one whose tensor it writes.
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

/// True for an operator that is not choosable and gives floats out of floats: a view, an in-place write. It has no
/// precision of its own: it hands on what it reads.
inline bool is_carrier(const op_graph& graph, std::size_t i) {
  return !computes(graph[i]) && detail::gives_floats(graph[i]) && !cast_target(graph[i]) &&
         !detail::float_sources(graph, i).empty();
}

namespace detail {

/// The precision in which operator `i`, a carrier, hands on what it reads.
inline precision carried_on(const op_graph& graph, const std::vector<precision>& handed, std::size_t i) {
  const std::vector<std::size_t> sources = float_sources(graph, i);
  precision met = handed[sources.front()];
  for (const std::size_t from : sources) met = promoted(met, handed[from]);
  return met;
}

}  // namespace detail

/// Operators write and hand on what they compute in (TF32: FP32), carriers what they read, casts of the model's own
/// what they cast to, unless the plan has one give a low precision at once. Throws: `plan_error` when `p` does not fit
/// `graph`.
inline typed_plan typed(const op_graph& graph, const plan& p) {
  require_fits(p, graph);
  typed_plan types{.plan = p, .handed_on = std::vector<precision>(graph.size(), precision::fp32)};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const std::optional<precision> to = cast_target(graph[i]);
    types.handed_on[i] = to && !is_low(p[i])    ? *to
                         : is_carrier(graph, i) ? detail::carried_on(graph, types.handed_on, i)
                                                : detail::handed_on(p[i]);
  }
  types.written = types.handed_on;
  types.parameters.assign(graph.size(), precision::fp32);
  return types;
}

}  // namespace comp::autocast
