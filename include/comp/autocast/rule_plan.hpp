// SPDX-License-Identifier: Apache-2.0
// The plan that an AMP system would run with no search: the policy's categories, carried along the edges of the graph.
// What a found plan is measured against. Not here: where casts go (a backend places them on the edges of the plan).
#pragma once

#include <algorithm>
#include <comp/autocast/own_casts.hpp>
#include <comp/autocast/promotion.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <cstddef>
#include <optional>
#include <vector>

namespace comp::autocast {

namespace detail {

/// The format that an operator run in `p` hands on: TF32 lives inside the operator only.
constexpr precision handed_on(precision p) { return p == precision::tf32 ? precision::fp32 : p; }

/// `low`, but never less than what the policy dares: of two formats of different size the larger.
constexpr precision lowered(const decision& said, precision low) {
  return traits(said.compute).bytes > traits(low).bytes ? said.compute : low;
}

inline bool gives_floats(const op_info& op) {
  return op.outputs.empty() || std::ranges::any_of(op.outputs, &tensor_info::floating);
}

/// What an operator hands on. Loose: made from nothing (zeros, a random tensor), in whatever format the model asks for
/// at run time, which is that of the tensors it is used with.
struct handed {
  precision in = precision::fp32;
  bool loose = false;
};

/// Where the graph says which operator made each input.
inline bool knows_sources(const op_info& op) {
  return op.producers.empty() ||
         std::ranges::any_of(op.inputs, [](const tensor_info& input) { return input.source >= 0; });
}

inline std::optional<precision> met_by_producers(const op_graph& graph, const std::vector<handed>& carried,
                                                 const op_info& op) {
  std::optional<precision> widest;
  for (const std::size_t producer : op.producers) {
    if (!gives_floats(graph[producer])) continue;
    widest = widest ? promoted(*widest, carried[producer].in) : carried[producer].in;
  }
  return widest;
}

/// Parameters, the graph's inputs and loose tensors take part only where the operator computes in what all inputs meet
/// in; and there a tensor without dimensions does not, beside one that has some.
inline std::optional<precision> met_by_inputs(const std::vector<handed>& carried, const op_info& op, bool promoting) {
  const bool sized =
      std::ranges::any_of(op.inputs, [](const tensor_info& t) { return t.floating && !t.shape.empty(); });
  std::optional<precision> widest;
  for (const tensor_info& input : op.inputs) {
    const bool produced = input.source >= 0;
    const handed from = produced ? carried[static_cast<std::size_t>(input.source)] : handed{input.dtype, true};
    if (!input.floating || (from.loose && !promoting) || (promoting && sized && input.shape.empty())) continue;
    widest = widest ? promoted(*widest, from.in) : from.in;
  }
  return widest;
}

/// The precision in which the floating tensors that an operator reads meet; FP32 when it reads none.
inline precision met(const op_graph& graph, const std::vector<handed>& carried, const op_info& op, bool promoting) {
  return (knows_sources(op) ? met_by_inputs(carried, op, promoting) : met_by_producers(graph, carried, op))
      .value_or(precision::fp32);
}

/// Of an operator whose precision is not chosen: one that writes leaves its first tensor in the format that it has, and
/// one that converts gives what it was told to.
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

/// allow: `low`, or what the policy computes in where that is a larger format (so a policy for FP16 is never taken to
/// FP8). deny: FP32. follow, infer, clear: the widest of what it reads, so low only when all of it is. A decision that
/// is `fixed` holds. The graph's own inputs, and operators that read only integers (an embedding), count as FP32.
/// Parameters are cast to what the operator runs in, but for operators that promote (`x + bias`): those compute in
/// FP32, where the graph says which inputs are parameters. Returns: a plan that fits `graph`: an operator that is not
/// choosable has FP32 there, but hands on what it reads, unless its author fixed it; a cast of the model's own is what
/// it is. Throws: what the policy throws.
template <OperatorPolicy P>
plan rule_plan(const P& policy, const op_graph& graph, precision low) {
  plan result{graph.size()};
  std::vector<detail::handed> carried(graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const decision said = policy.classify(graph[i]);
    const precision read =
        detail::met(graph, carried, graph[i], said.category == category::infer || promotes(graph[i].kind));
    carried[i] = detail::passed_on(graph, carried, graph[i], read);
    if (graph[i].author != author_choice::none) carried[i] = {};
    if (!graph[i].choosable) continue;
    result[i] = said.fixed                         ? said.compute
                : cast_target(graph[i])            ? carried[i].in
                : said.category == category::allow ? detail::lowered(said, low)
                : said.category == category::deny  ? precision::fp32
                                                   : read;
    carried[i].in = detail::handed_on(result[i]);
    carried[i].loose = carried[i].loose && cast_target(graph[i]);
  }
  return result;
}

}  // namespace comp::autocast
