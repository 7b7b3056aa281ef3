// SPDX-License-Identifier: Apache-2.0
// The plan that an AMP system would run with no search: the policy's categories, carried along the edges of the graph.
// What a found plan is measured against. Not here: where casts go (a backend places them on the edges of the plan).
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <cstddef>
#include <optional>
#include <vector>

namespace comp::autocast {

namespace detail {

/// What two tensors meet in: the larger format; FP32 where two formats of one size differ, as PyTorch promotes.
constexpr precision promoted(precision a, precision b) {
  if (a == b) return a;
  if (traits(a).bytes == traits(b).bytes) return precision::fp32;
  return traits(a).bytes > traits(b).bytes ? a : b;
}

/// The format that an operator run in `p` hands on: TF32 lives inside the operator only.
constexpr precision handed_on(precision p) { return p == precision::tf32 ? precision::fp32 : p; }

/// `low`, but never less than what the policy dares: of two formats of different size the larger.
constexpr precision lowered(const decision& said, precision low) {
  return traits(said.compute).bytes > traits(low).bytes ? said.compute : low;
}

inline bool gives_floats(const op_info& op) {
  return op.outputs.empty() || std::ranges::any_of(op.outputs, &tensor_info::floating);
}

/// The precision in which the floating tensors that operator `i` reads meet; FP32 when it reads none from others.
inline precision met(const op_graph& graph, const std::vector<precision>& carried, std::size_t i) {
  std::optional<precision> widest;
  for (const std::size_t producer : graph[i].producers) {
    if (!gives_floats(graph[producer])) continue;
    widest = widest ? promoted(*widest, carried[producer]) : carried[producer];
  }
  return widest.value_or(precision::fp32);
}

}  // namespace detail

/// allow: `low`, or what the policy computes in where that is a larger format (so a policy for FP16 is never taken to
/// FP8). deny: FP32. follow, infer, clear: the widest of what it reads, so low only when all of it is. A decision that
/// is `fixed` holds. The graph's own inputs, and operators that read only integers (an embedding), count as FP32.
/// Parameters are not looked at: they are cast to what the operator runs in.
/// Returns: a plan that fits `graph`: an operator that is not choosable has FP32 there, but hands on what it reads.
/// Throws: what the policy throws.
template <OperatorPolicy P>
plan rule_plan(const P& policy, const op_graph& graph, precision low) {
  plan made{graph.size()};
  std::vector<precision> carried(graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const precision read = detail::met(graph, carried, i);
    carried[i] = read;
    if (!graph[i].choosable) continue;
    const decision said = policy.classify(graph[i]);
    made[i] = said.fixed                         ? said.compute
              : said.category == category::allow ? detail::lowered(said, low)
              : said.category == category::deny  ? precision::fp32
                                                 : read;
    carried[i] = detail::handed_on(made[i]);
  }
  return made;
}

}  // namespace comp::autocast
