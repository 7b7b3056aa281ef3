// SPDX-License-Identifier: Apache-2.0
// The plan that Paddle's auto_cast and decorate make for a model at level O0, OD, O1 or O2, and the formats in which O2
// stores parameters. For an operator on no list, parameters count as inputs: FP32 parameters keep it in FP32. Batch
// norm and layer norm are exceptions: their first input decides alone.
// Source: Paddle's guide, section 2; paddle.amp.decorate and need_keep_fp32 of Paddle 3.3.1, pure_fp16_initialize
// of 2.4. Compared with what Paddle 3.3.1 does with 101 random graphs (tests/systems/paddle_typed.inc).
#pragma once

#include <comp/autocast/typed_plan.hpp>
#include <comp/core/error.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <comp/systems/follow_pass.hpp>
#include <comp/systems/paddle.hpp>
#include <cstddef>
#include <string_view>
#include <vector>

namespace comp::autocast {

/// The parameters of a model after paddle.amp.decorate.
struct decorated {
  std::vector<precision> parameters = {};  // the format of each operator's parameters, as stored between steps
  std::vector<precision> saved = {};       // their format in files
  bool master_weights = false;             // true: the optimizer updates FP32 copies and rounds the low ones from them
  bool master_gradients = false;           // true: gradients of parameters are made FP32 before clipping and update
};

namespace detail {

/// True if O2 leaves an operator's parameters in FP32.
inline bool keeps_fp32(const policy::paddle& amp, const op_info& op) {
  const std::string_view kind = amp.theirs(op);
  const bool v3 = amp.version == policy::paddle_version::v3, fp16 = amp.low == precision::fp16;
  if (!amp.stores_low(op)) return true;
  if (kind == "batch_norm" || kind == "sync_batch_norm") return v3 || fp16;
  return fp16 && (kind == "layer_norm" || (v3 && kind == "instance_norm"));
}

/// True for norms whose first input alone decides their precision.
inline bool first_decides(const policy::paddle& amp, const op_info& op) {
  const std::string_view kind = amp.theirs(op);
  const bool norm = kind == "batch_norm" || kind == "layer_norm" || kind == "sync_batch_norm";
  return norm && (amp.version == policy::paddle_version::v3 || amp.low == precision::fp16);
}

}  // namespace detail

/// Stores parameters as paddle.amp.decorate does. At O2 each parameter is cast once, before training, and the optimizer
/// keeps FP32 copies. Parameters stay in FP32 in batch norms, with FP16 in layer norms and (in Paddle 3) instance
/// norms, in excluded layers and outside of the guard. At other levels, and with `decorate` false, nothing is cast.
/// Throws: `settings_error`, naming the operator, if a parameter is stored low already.
inline decorated decorate(const policy::paddle& amp, const op_graph& graph) {
  decorated model{.parameters = std::vector<precision>(graph.size(), precision::fp32)};
  model.saved = model.parameters;
  if (amp.level != policy::paddle_level::o2 || !amp.decorate) return model;
  model.master_weights = amp.master_weight;
  model.master_gradients = amp.master_grad;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    for (const std::size_t k : leaf_inputs(graph, i)) {
      if (is_data(graph, i, k)) continue;
      const precision stored = graph[i].inputs[k].dtype;
      require<settings_error>(
          stored == precision::fp32,
          "a parameter of operator {} (\"{}\") is {} already (O2 casts parameters once, from FP32): "
          "decorate the FP32 model, and only once",
          i, graph[i].name, name(stored));
      if (!detail::keeps_fp32(amp, graph[i])) model.parameters[i] = amp.low;
    }
    model.saved[i] = amp.save_dtype.value_or(model.parameters[i]);
  }
  return model;
}

/// Returns: a typed plan whose plan fits `graph`.
/// Throws: `settings_error` as paddle::check and decorate do.
inline typed_plan paddle_pass(const policy::paddle& amp, const op_graph& graph) {
  amp.check();
  const decorated stored = decorate(amp, graph);
  const auto all = [](bool /*data*/) { return true; };
  typed_plan types = follow_pass(
      graph, {.low = amp.low}, [&](std::size_t i) { return amp.classify(graph[i]); },
      [&](std::size_t i) {
        const bool counted = graph[i].producers.empty() || !detail::first_decides(amp, graph[i]);
        const auto widest = widest_leaf(graph, i, stored.parameters[i], all);
        return leaf_rule{.counted = counted, .stored = widest.value_or(precision::fp32)};
      });
  types.parameters = stored.parameters;
  return types;
}

}  // namespace comp::autocast
