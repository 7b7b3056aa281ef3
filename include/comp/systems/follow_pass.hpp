// SPDX-License-Identifier: Apache-2.0
// One walk in execution order in which an operator that follows runs low only when every floating input already is, and
// else everything it reads goes back to full precision: TVM's ToMixedPrecision and Paddle's O1 and O2 are this walk
// with different rules (tvm_pass.hpp, paddle_pass.hpp). Not here: promotion to the widest input (rule_plan.hpp).
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

/// What operator `i` reads of parameters and data, where `wanted` says so: the precision that they are stored in, the
/// widest where there are several. `stored`: of its parameters.
template <class Wanted>
std::optional<precision> widest_leaf(const op_graph& graph, std::size_t i, precision stored, Wanted&& wanted) {
  std::optional<precision> widest;
  for (const std::size_t k : leaf_inputs(graph, i)) {
    const bool data = is_data(graph, i, k);
    if (!wanted(data)) continue;
    const precision leaf = data || stored == precision::fp32 ? graph[i].inputs[k].dtype : stored;
    widest = widest ? promoted(*widest, leaf) : leaf;
  }
  return widest;
}

/// What a follow-operator counts of its parameters and of the model's own inputs.
struct leaf_rule {
  bool counted = false;  // false: they are cast to whatever the operator runs in
  precision stored = precision::fp32;
  bool always = false;  // also where no input is known to be one
};

struct follow_settings {
  precision low = precision::fp16;
  precision full = precision::fp32;
  bool rounds_at_once = true;  // the backend sums in one precision and writes another; false: a cast follows
};

namespace detail {

/// Whether all that `i` reads is in the low precision; nothing for an operator that reads nothing but what adapts.
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

/// What a carrier reads: nothing yet decided when only parameters that adapt stand before it.
inline std::optional<precision> carried_by(const op_graph& graph, const std::vector<std::optional<precision>>& carried,
                                           std::size_t i, const leaf_rule& leaves) {
  std::optional<precision> read;
  for (const std::size_t from : float_sources(graph, i)) {
    if (carried[from]) read = read ? promoted(*read, *carried[from]) : *carried[from];
  }
  return read || !leaves.counted ? read : std::optional{leaves.stored};
}

}  // namespace detail

/// `rule(i)` gives the decision for operator `i`, `leaves(i)` its leaf_rule. An allow-operator computes in
/// `decision.compute`, sums in `accumulate` and hands on `output`, and so does a follow-operator that runs low.
/// Returns: a typed plan whose plan fits `graph`. Throws: what the two functions throw.
template <class Rule, class Leaves>
typed_plan follow_pass(const op_graph& graph, const follow_settings& settings, Rule&& rule, Leaves&& leaves) {
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
    const decision said = rule(i);
    const bool low = said.category == category::allow ||
                     (said.category != category::deny &&
                      detail::all_low(graph, carried, i, own, settings.low).value_or(!own.counted));
    types.plan[i] = low ? said.compute : settings.full;
    types.handed_on[i] = detail::handed_on(low ? said.output : settings.full);
    types.written[i] = low && !settings.rounds_at_once ? detail::handed_on(said.accumulate) : types.handed_on[i];
    carried[i] = types.handed_on[i];
  }
  return types;
}

}  // namespace comp::autocast
