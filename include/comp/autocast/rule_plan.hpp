// SPDX-License-Identifier: Apache-2.0
// The rule-based plan: what PyTorch's AMP would run, without a search. The policy gives each operator its category, and
// operators without an opinion take the precision of their inputs, which is carried along the edges of the graph. A
// search measures its found plan against it.
// Source of the type promotion, the format in which an operator computes whose inputs have different ones:
// c10/core/ScalarType.h (promoteTypes), ATen/native/TypeProperties.cpp (0-dimensional tensors), and the operators of
// ATen that call TensorIteratorConfig::promote_inputs_to_common_dtype, or at::result_type; PyTorch 2.11.0.
#pragma once

#include <algorithm>
#include <comp/autocast/own_casts.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/kind_name.hpp>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

namespace comp::autocast {

/// Returns the format that holds both: the larger one, or FP32 if two formats have the same size (BF16 and FP16).
constexpr precision promoted(precision a, precision b) {
  if (a == b) return a;
  if (traits(a).bytes == traits(b).bytes) return precision::fp32;
  return traits(a).bytes > traits(b).bytes ? a : b;
}

// clang-format off
/// Operators that accept inputs of different formats and promote them. Every other operator raises an error for such
/// inputs, or computes in the format of its first input while others (the weights of a norm) may differ.
inline constexpr std::string_view promoting_kinds[] = {
    "add", "addcdiv", "addcmul", "arctan2", "atan2", "cat", "clamp", "clamp_max", "clamp_min", "column_stack", "concat",
    "concatenate", "copysign", "div", "divide", "dstack", "eq", "floor_divide", "fmax", "fmin", "fmod", "ge", "gt",
    "heaviside", "hstack", "hypot", "le", "lerp", "logaddexp", "logaddexp2", "lt", "max", "maximum", "min", "minimum", "mul",
    "multiply", "ne", "nextafter", "pow", "remainder", "rsub", "stack", "sub", "subtract", "true_divide", "vstack", "where",
    "xlogy"};
// clang-format on

constexpr bool promotes(std::string_view kind) {
  return std::binary_search(std::begin(promoting_kinds), std::end(promoting_kinds), policy::without_overload(kind));
}

namespace detail {

/// The format of an operator that is lowered to `low`: the larger of that and what the policy allows.
constexpr precision lowered(const decision& by_policy, precision low) {
  return traits(by_policy.compute).bytes > traits(low).bytes ? by_policy.compute : low;
}

inline bool gives_floats(const op_info& op) {
  return op.outputs.empty() || std::ranges::any_of(op.outputs, &tensor_info::floating);
}

/// The format in which readers get an operator's result.
struct handed {
  precision in = precision::fp32;
  /// True: no input decides the format (zeros, a random tensor). A model usually makes such a tensor in the format of
  /// the tensors that it is used with, so it does not widen its reader.
  bool loose = false;
};

constexpr precision narrower(precision a, precision b) { return traits(a).bytes < traits(b).bytes ? a : b; }

/// True if the graph says which operator made each input.
inline bool knows_sources(const op_info& op) {
  return op.producers.empty() ||
         std::ranges::any_of(op.inputs, [](const tensor_info& input) { return input.source >= 0; });
}

/// The widest format that the producers of `op` hand on, for a graph that does not say which input is whose.
inline std::optional<precision> met_by_producers(const op_graph& graph, const std::vector<handed>& carried,
                                                 const op_info& op) {
  std::optional<precision> widest;
  for (const std::size_t producer : op.producers) {
    if (!gives_floats(graph[producer])) continue;
    widest = widest ? promoted(*widest, carried[producer].in) : carried[producer].in;
  }
  return widest;
}

/// The widest format of the inputs of `op`. Parameters, the model's data and loose tensors count only for an operator
/// that promotes (`promoting`): elsewhere they are cast to the operator's precision. For a promoting operator PyTorch
/// ignores tensors without dimensions beside others that have some.
inline std::optional<precision> met_by_inputs(const std::vector<handed>& carried, const op_info& op, bool promoting) {
  const bool sized =
      std::ranges::any_of(op.inputs, [](const tensor_info& t) { return t.floating && !t.shape.empty(); });
  std::optional<precision> widest;
  for (const tensor_info& input : op.inputs) {
    const bool produced = input.source >= 0;
    const handed from = produced ? carried[static_cast<std::size_t>(input.source)] : handed{input.dtype, true};
    // Hugging Face's caches begin as empty tensors "in the format of the keys", which are low under autocast.
    const bool empty = std::ranges::find(input.shape, 0) != input.shape.end();
    if (!input.floating || (from.loose && (!promoting || empty))) continue;
    if (promoting && sized && input.shape.empty()) continue;
    widest = widest ? promoted(*widest, from.in) : from.in;
  }
  return widest;
}

/// The widest format of the floating-point tensors that an operator reads; when it reads none, what it is written in.
inline precision met(const op_graph& graph, const std::vector<handed>& carried, const op_info& op, bool promoting) {
  return (knows_sources(op) ? met_by_inputs(carried, op, promoting) : met_by_producers(graph, carried, op))
      .value_or(op.as_written);
}

/// What an operator whose precision cannot be chosen hands on: an in-place write keeps the format of the tensor that it
/// writes, a cast of the model's own gives its target, and others give what they read (`read`).
inline handed passed_on(const op_graph& graph, const std::vector<handed>& carried, const op_info& op, precision read) {
  if (const std::optional<precision> to = cast_target(op)) {
    return {*to, !op.inputs.empty() && !op.inputs.front().floating};
  }
  const bool writes = policy::without_overload(op.kind).ends_with('_');
  const auto of = [&](const tensor_info& t) {
    return t.source >= 0 ? carried[static_cast<std::size_t>(t.source)] : handed{t.dtype};
  };
  if (writes && knows_sources(op) && !op.inputs.empty()) return of(op.inputs.front());
  if (casts_as_other(op) && knows_sources(op)) return of(op.inputs[1]);
  const auto makes_floats = [&](std::size_t p) { return gives_floats(graph[p]) && !carried[p].loose; };
  const bool reads = std::ranges::any_of(op.inputs, &tensor_info::parameter) ||
                     std::ranges::any_of(op.inputs, [](const tensor_info& t) { return t.floating && t.source < 0; }) ||
                     std::ranges::any_of(op.producers, makes_floats);
  return {read, !reads};
}

}  // namespace detail

/// Makes the rule-based plan for one low precision.
///   allow:                 `low`, or the policy's own precision if that is larger, so that a policy made for FP16
///                          never gives FP8. Autocast leaves FP64 alone, so that stays beside a 16-bit `low`.
///   deny:                  as it is written, FP32 or FP64.
///   follow, infer, clear:  the widest format that the operator reads, so low only if all of its inputs are.
///   fixed:                 the policy's precision, whatever the category.
/// The model's data, and operators that read only integers (an embedding), count as FP32. Parameters are cast to the
/// precision of their operator; an operator that promotes (`x + bias`) computes in FP32 because of them, if the graph
/// says which inputs are parameters.
/// Returns: a plan that fits `graph`. An operator that is not choosable has FP32 in it. It hands on the format that
/// it reads, unless the model's author fixed it (op_info::author): then it hands on FP32.
/// Throws: what the policy throws.
plan rule_plan(const OperatorPolicy auto& policy, const op_graph& graph, precision low) {
  plan result = as_written(graph);
  std::vector<detail::handed> carried(graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const decision by_policy = policy.classify(graph[i]);
    const precision read =
        detail::met(graph, carried, graph[i], by_policy.category == category::infer || promotes(graph[i].kind));
    carried[i] = detail::passed_on(graph, carried, graph[i], read);
    if (graph[i].author != author_choice::none) carried[i] = {graph[i].as_written};
    if (!graph[i].choosable) continue;
    const bool stays = by_policy.category == category::deny || (graph[i].as_written == precision::fp64 && is_low(low));
    result[i] = by_policy.fixed                         ? by_policy.compute
                : cast_target(graph[i])                 ? carried[i].in
                : stays                                 ? graph[i].as_written
                : by_policy.category == category::allow ? detail::lowered(by_policy, low)
                                                        : detail::narrower(read, graph[i].as_written);
    carried[i].in = handed_on(result[i]);
    carried[i].loose = carried[i].loose && cast_target(graph[i]);
  }
  return result;
}

}  // namespace comp::autocast
