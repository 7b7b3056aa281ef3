// SPDX-License-Identifier: Apache-2.0
// What TVM's ToMixedPrecision makes of a model. ALLOW: every floating input is cast to the low precision. FOLLOW: low
// only when all of them already are, else all go back to full precision. DENY: full precision. An operator that runs
// low sums in its accumulation dtype and gives its output dtype. Not here: TVM's passes around it (common
// subexpressions are casts.hpp's; constant folding and fast math are a compiler's), its check of clip bounds against
// the low precision's range (op_graph knows no attributes). Source: TVM RFC 0006, reference-level explanation;
// src/relay/transforms/to_mixed_precision.cc at 21095b98.
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

struct tvm_pass_settings {
  /// The backend sums in the accumulation dtype and rounds to the output dtype at once. False, as in TVM: a cast
  /// follows.
  bool rounds_at_once = false;
  /// Parameters and the model's inputs are cast to what an operator that follows runs in, as TVM does. False: the RFC's
  /// letter: they are inputs like others, in the precision they are stored in, and in FP32 they hold it in full
  /// precision.
  bool leaves_adapt = true;
  /// The model's inputs do not adapt, and an operator that follows and reads integers of the model's runs in full
  /// precision: Relax.
  bool data_counts = false;
  /// relay.ToMixedPrecision.keep_orig_output_dtype: what the model hands out is FP32.
  bool keep_output_dtype = false;
  /// Where warnings of unregistered operators go, one per kind.
  std::function<void(const std::string&)> warn = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
};

namespace detail {

inline leaf_rule tvm_leaves(const op_graph& graph, std::size_t i, const tvm_pass_settings& settings) {
  if (settings.leaves_adapt && !settings.data_counts) return {};
  const op_info& op = graph[i];
  const auto counts = [&](bool data) { return !settings.leaves_adapt || data; };
  const std::optional<precision> widest = widest_leaf(graph, i, precision::fp32, counts);
  const bool integers = settings.data_counts && std::ranges::any_of(op.inputs, [](const tensor_info& t) {
                          return !t.floating && !t.parameter;
                        });
  const bool unknown_entry = op.inputs.empty() && op.producers.empty();
  return {.counted = widest || integers || unknown_entry,
          .stored = integers ? precision::fp32 : widest.value_or(precision::fp32),
          .always = integers};
}

}  // namespace detail

/// Returns: a typed plan whose plan fits `graph`; with an accumulation dtype unlike the output dtype, casts.hpp places
/// the cast behind the operator. Throws: `settings_error` as tvm::classify.
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

/// What Relax's ToMixedPrecision makes of a model whose parameters are bound as constants: those adapt, the model's
/// inputs count as they are stored, and what the model hands out is FP32. Throws: as tvm_pass.
inline typed_plan relax_pass(const op_graph& graph, const policy::tvm& amp = policy::relax()) {
  return tvm_pass(amp, graph, {.data_counts = true, .keep_output_dtype = true});
}

}  // namespace comp::autocast
