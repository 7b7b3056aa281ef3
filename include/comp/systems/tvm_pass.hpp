// SPDX-License-Identifier: Apache-2.0
// The plan that TVM's ToMixedPrecision makes for a model. ALLOW: every floating-point input is cast to the low
// precision. FOLLOW: the operator runs low if all its inputs are low already; otherwise they are cast to full
// precision. DENY: full precision. An operator that runs low sums in its accumulation dtype and gives its output dtype.
// TVM also checks that the bounds of a clip fit the low precision. This pass does not, because op_graph has no
// attributes of operators.
// Source: TVM RFC 0006, reference-level explanation; src/relay/transforms/to_mixed_precision.cc at 21095b98.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <comp/autocast/typed_plan.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/systems/follow_pass.hpp>
#include <comp/systems/tvm.hpp>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace comp::autocast {

/// The points in which TVM's documents, its Relay pass and its Relax pass differ.
struct tvm_pass_settings {
  /// True: kernels sum in the accumulation dtype and write the output dtype. False, as in TVM: a cast stands behind
  /// them.
  bool rounds_at_once = false;
  /// True, as TVM's code does: parameters and data are cast to the precision of an operator that follows. False, as the
  /// RFC says: they count as inputs in the precision that they are stored in, so FP32 parameters keep the operator in
  /// full precision.
  bool leaves_adapt = true;
  /// True, as in Relax: the model's data count as inputs, and an operator that follows runs in full precision if it
  /// reads integers of the model's data.
  bool data_counts = false;
  /// relay.ToMixedPrecision.keep_orig_output_dtype. True: the model's results are FP32.
  bool keep_output_dtype = false;
  /// Takes the warnings about operators without a rule, one for each kind.
  std::function<void(const std::string&)> warn = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
};

namespace detail {

/// Returns how the leaves of operator `i` count under `settings`.
inline leaf_rule tvm_leaves(const op_graph& graph, std::size_t i, const tvm_pass_settings& settings) {
  if (graph[i].is_state) return {.counted = true, .stored = precision::fp32, .always = true};  // none of TVM's graph
  if (settings.leaves_adapt && !settings.data_counts) return {};
  const op_info& op = graph[i];
  const auto counts = [&](bool data) { return !settings.leaves_adapt || data; };
  const std::optional<precision> widest = widest_leaf(graph, i, precision::fp32, counts);
  const bool integers = settings.data_counts && std::ranges::any_of(op.inputs, [](const tensor_info& t) {
                          return !t.floating && !t.number && !t.parameter;
                        });
  const bool unknown_entry = op.inputs.empty() && op.producers.empty();
  return {.counted = widest || integers || unknown_entry,
          .stored = integers ? precision::fp32 : widest.value_or(precision::fp32),
          .always = integers};
}

}  // namespace detail

/// Returns: a typed plan whose plan fits `graph`. If an operator's accumulation dtype is not its output dtype,
/// casts.hpp places the cast behind the operator.
/// Throws: `settings_error` as tvm::classify does.
inline typed_plan tvm_pass(const policy::tvm& amp, const op_graph& graph, const tvm_pass_settings& settings = {}) {
  if (amp.missing == policy::missing_rule::warn && settings.warn) {
    for (const std::string& text : amp.warnings(graph)) settings.warn(text);
  }
  typed_plan types = follow_pass(
      graph, {.low = amp.low, .full = amp.full, .rounds_at_once = settings.rounds_at_once},
      [&](std::size_t i) { return amp.classify(graph[i]); },
      [&](std::size_t i) { return detail::tvm_leaves(graph, i, settings); });
  for (std::size_t i = 0; settings.keep_output_dtype && i < graph.size(); ++i) {
    if (graph.consumers(i).empty()) types.handed_on[i] = precision::fp32;
  }
  return types;
}

/// The plan of Relax's ToMixedPrecision for a model whose parameters are bound as constants: parameters are cast to the
/// precision of their operator, the model's data count in the precision that they are stored in, and the model's
/// results are FP32.
/// Throws: as tvm_pass does.
inline typed_plan relax_pass(const op_graph& graph, const policy::tvm& amp = policy::relax()) {
  return tvm_pass(amp, graph, {.data_counts = true, .keep_output_dtype = true});
}

}  // namespace comp::autocast
