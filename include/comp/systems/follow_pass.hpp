// SPDX-License-Identifier: Apache-2.0
// The walk that TVM's ToMixedPrecision and Paddle's O1 and O2 have in common (tvm_pass.hpp, paddle_pass.hpp). Operators
// are visited in execution order. One of category follow runs low only if all its floating-point inputs are low
// already; otherwise its inputs are cast back to full precision.
// Source: TVM RFC 0006, reference-level explanation; Paddle's guide to automatic mixed precision, section 2.
#pragma once

#include <comp/autocast/typed_plan.hpp>
#include <comp/core/decision.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <cstddef>
#include <optional>
#include <vector>

namespace comp::autocast {

/// Returns: the widest format in which the leaves of operator `i` (its parameters and data) are stored; nothing if it
/// has none. `counts(is_data)` says which leaves count; `stored` is the format of the operator's parameters.
std::optional<precision> widest_leaf(const op_graph& graph, std::size_t i, precision stored, auto&& counts) {
  std::optional<precision> widest;
  for (const std::size_t k : leaf_inputs(graph, i)) {
    const bool data = is_data(graph, i, k);
    if (!counts(data)) continue;
    const precision leaf = data || stored == precision::fp32 ? graph[i].inputs[k].dtype : stored;
    widest = widest ? promoted(*widest, leaf) : leaf;
  }
  return widest;
}

/// How the leaves of an operator (its parameters and data) influence its precision if it follows its inputs.
struct leaf_rule {
  bool counted = false;  // true: they count as inputs; false: they are cast to whatever the operator runs in
  precision stored = precision::fp32;  // the format that they are stored in
  bool always = false;                 // true: they count even if the graph does not show that the operator has leaves
};

/// What the walk needs to know besides the rules.
struct follow_settings {
  precision low = precision::fp16;
  precision full = precision::fp32;
  bool rounds_at_once = true;  // true: kernels sum in one format and write another; false: a cast stands behind them
};

namespace detail {

/// Returns: whether everything that counts as an input of operator `i` is in the low precision; nothing if nothing
/// counts. An operator whose inputs are unknown and that has no producer is taken to read the model's data.
inline std::optional<bool> all_low(const op_graph& graph, const std::vector<std::optional<precision>>& carried,
                                   std::size_t i, const leaf_rule& leaves, precision low) {
  std::optional<bool> all;
  const auto count = [&](precision p) { all = all.value_or(true) && p == low; };
  for (const std::size_t from : graph[i].producers) {
    if (gives_floats(graph[from]) && carried[from]) count(*carried[from]);
  }
  const bool unknown_entry = graph[i].inputs.empty() && graph[i].producers.empty();
  if (leaves.counted && (leaves.always || unknown_entry || !leaf_inputs(graph, i).empty())) count(leaves.stored);
  return all;
}

/// Returns: the format that a carrier (a view, an in-place write) hands on; nothing if it reads only leaves that are
/// cast to whatever their reader runs in, so that its format is not decided yet.
inline std::optional<precision> carried_by(const op_graph& graph, const std::vector<std::optional<precision>>& carried,
                                           std::size_t i, const leaf_rule& leaves) {
  std::optional<precision> read;
  for (const std::size_t from : float_sources(graph, i)) {
    if (carried[from]) read = read ? promoted(*read, *carried[from]) : *carried[from];
  }
  return read || !leaves.counted ? read : std::optional{leaves.stored};
}

}  // namespace detail

/// Walks the graph. `rule(i)` returns the decision for operator `i`, `leaves(i)` its leaf_rule. An operator that runs
/// low computes in the decision's `compute`, sums in its `accumulate` and hands on its `output`.
/// Returns: a typed plan whose plan fits `graph`.
/// Throws: what the two functions throw.
typed_plan follow_pass(const op_graph& graph, const follow_settings& settings, auto&& rule, auto&& leaves) {
  typed_plan types = typed(graph, plan{graph.size()});
  std::vector<std::optional<precision>> carried(graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const leaf_rule own = leaves(i);
    if (const std::optional<precision> to = cast_target(graph[i])) {
      carried[i] = types.written[i] = types.handed_on[i] = *to;
      if (graph[i].choosable) types.plan[i] = *to;
      continue;
    }
    if (!graph[i].choosable) {
      carried[i] = computes(graph[i]) ? settings.full : detail::carried_by(graph, carried, i, own);
      types.written[i] = types.handed_on[i] = carried[i].value_or(settings.full);
      continue;
    }
    const decision choice = rule(i);
    const bool low = choice.category == category::allow ||
                     (choice.category != category::deny &&
                      detail::all_low(graph, carried, i, own, settings.low).value_or(!own.counted));
    types.plan[i] = low ? choice.compute : settings.full;
    types.handed_on[i] = handed_on(low ? choice.output : settings.full);
    types.written[i] = low && !settings.rounds_at_once ? handed_on(choice.accumulate) : types.handed_on[i];
    carried[i] = types.handed_on[i];
  }
  return types;
}

}  // namespace comp::autocast
