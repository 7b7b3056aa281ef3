// SPDX-License-Identifier: Apache-2.0
// Compiles a plan: for each recorded operator which of its inputs are cast, to which format, and which casts are
// shared. A tensor that several operators read in one format is cast once in a forward.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <comp/core/product.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/kernels/kernels.hpp>
#include <comp_libtorch/kernels/scaled_linear.hpp>
#include <comp_libtorch/plan/forward_map.hpp>
#include <comp_libtorch/plan/low_weights.hpp>
#include <comp_libtorch/plan/recorder.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace comp::libtorch {

/// The operators of a linear layer's products in the backward, in the graph; 0 if it has none.
struct gradient_operators {
  std::size_t input = 0, weight = 0;
};

}  // namespace comp::libtorch

namespace comp::libtorch::detail {

/// An input that is cast.
struct cast_slot {
  std::uint16_t argument = 0;
  std::int16_t element = -1;
  std::int32_t weight = -1;  // entry of low_weights; -1: it is no parameter
  bool viewed = false;       // the operator is a view of the weight's low copy
  std::int32_t shared = -1;  // number of the cast that it shares with other inputs; -1: none
  bool last_use = false;     // no later input uses the shared cast
};

struct instruction {
  c10::OperatorHandle op;
  std::uint32_t index;  // in the graph
  at::ScalarType target = at::kFloat;
  at::ScalarType full = at::kFloat;  // of its result without a plan
  at::MemoryFormat layout = at::MemoryFormat::Preserve;
  std::uint32_t first_slot = 0;
  std::uint16_t slots = 0;
  std::uint16_t arguments = 0;
  std::uint16_t parameter_argument = 0;
  const c10::TensorImpl* parameter = nullptr;  // the one that it reads; null: none
  kernel_use own = {};                         // what comp's kernel runs; ATen runs the rest
  bool lists = false;                          // a slot is in a list of tensors
  bool opens = false;    // a composite, which has no precision: the instructions up to `end` are those inside it
  bool uniform = false;  // it takes tensors of one format only
  bool lowers = false;   // the plan gives it another precision, layout or kernel than it has without
  std::uint32_t end = 0;
  bool slow_path = false;                           // needs more than casts and a call: `own` or one of the following
  bool (*by_bits)(torch::jit::Stack&) = nullptr;    // comp's kernel with ATen's results, returns as kernel::run
  bool tf32 = false;                                // TensorFloat-32 is switched on for it
  std::optional<product_precisions> products = {};  // of a linear layer, if they need rounding
  bool hands_on_full = false;                       // low results are cast back
  bool follows_written = false;                     // inputs are cast to the format of the tensor that it writes
  bool wants_view = false;                          // aten::view of a tensor that may lie channels-last
  bool wants_contiguous = false;                    // the user's own operator, which may not know channels-last
  std::vector<std::int64_t> drawn_in = {};          // axis order of its argument, to draw the plain loop's numbers
  bool gives_contiguous = false;                    // results go to a torch::autograd::Function, which may not know it
};

/// Returns: comp's kernel for an operator that runs in `target`; null if ATen's is the only one. `tuned`: FP32 need not
/// have ATen's bits.
inline const kernel* own_kernel(const op_traits& known, at::ScalarType target, bool tuned) {
  const kernel* own = kernel_for(known);
  const bool low = target == at::kBFloat16 || target == at::kHalf;
  return own != nullptr && (low || (tuned && target == at::kFloat && own->serves_fp32)) ? own : nullptr;
}

/// The instructions of one segment.
struct code {
  std::vector<instruction> instructions = {};
  std::vector<cast_slot> slots = {};
  std::size_t shared = 0;  // number of shared casts
  bool any_low = false;
  bool channels_last = false;  // images may lie so
  forward_map map = {};
  std::uint64_t removed = removed_operators();  // when it was recorded
};

/// Returns: true if ATen takes a norm's FP32 weight and bias beside an input in `low`. It takes none in FP64 beside
/// FP32.
inline bool keeps_affine(const op_traits& known, at::ScalarType low, at::DeviceType device) {
  if (is_full(low)) return false;
  return device == at::kCPU || known.word.find("batch_norm") != std::string::npos || known.word == "instance_norm";
}

/// For each value the format in which all its readers want it, if they want the same.
class wanted_formats {
 public:
  wanted_formats() = default;
  /// Requires: operators in execution order.
  wanted_formats(std::span<const recorded_op> ops, std::span<const product_precisions> chosen, at::DeviceType device) {
    for (std::size_t i = ops.size(); i-- > 0;) {
      const op_traits& known = traits(ops[i].op);
      const bool computes = ops[i].role == op_role::choosable || ops[i].role == op_role::full;
      const format target = computes ? format{scalar_type(chosen[i].forward)} : of_view(ops[i]);
      for (const std::uint32_t value : ops[i].uncast) want(value, {});
      for (const recorded_input& input : ops[i].inputs) {
        const bool kept = takes_as_is(known, chosen[i], input.argument) ||
                          (input.affine && target && keeps_affine(known, *target, device));
        want(input.value, kept ? format{} : target);
      }
    }
  }
  /// Returns: the format that all readers of `value` want; nothing if they differ, or take it as it is.
  std::optional<at::ScalarType> of(std::uint32_t value) const {
    const auto at = wanted_.find(value);
    return at == wanted_.end() ? std::nullopt : at->second;
  }
  /// Returns: the format in which a view's results are wanted; nothing if their readers differ, or if gradients would
  /// be added in it: those of a result's several readers, or of a view that repeats elements.
  std::optional<at::ScalarType> of_view(const recorded_op& op) const {
    const op_traits& view = traits(op.op);
    if (!view.is_view || view.word == "expand" || view.word == "unfold" || view.word == "as_strided") return {};
    std::optional<at::ScalarType> all;
    for (const std::uint32_t value : op.outputs) {
      const format one = read_often_.contains(value) ? format{} : of(value);
      if (!one || (all && all != one)) return {};
      all = one;
    }
    return all;
  }

 private:
  using format = std::optional<at::ScalarType>;
  void want(std::uint32_t value, format in) {
    const auto [at, first] = wanted_.emplace(value, in);
    if (first) return;
    read_often_.insert(value);
    if (at->second != in) at->second = {};
  }
  std::unordered_map<std::uint32_t, format> wanted_;
  std::unordered_set<std::uint32_t> read_often_;
};

/// Returns: whether images may lie channels-last. A view of them would then be a copy, which does not see what is
/// written through another tensor.
inline bool may_reorder(std::span<const recorded_op> ops) { return std::ranges::none_of(ops, &recorded_op::shares); }

/// Compiles the segments of one recording for one plan.
class compiler {
 public:
  /// `layers`: the common names of the operators. `chosen`: their precisions. `tuned`: see plan::is_tuned.
  /// `may_read_low`: see program::may_read_low.
  compiler(std::span<const recorded_op> ops, std::span<const std::string> layers,
           std::span<const product_precisions> chosen, bool tuned, bool may_read_low, const program_settings& settings,
           low_weights& weights)
      : ops_{ops},
        layers_{layers},
        chosen_{chosen},
        settings_{&settings},
        weights_{&weights},
        kernels_{settings.kernels.begin(), settings.kernels.end()},
        tuned_{tuned},
        any_low_{std::ranges::any_of(chosen, &product_precisions::lowers)},
        casts_{any_low_ || may_read_low},
        channels_last_{settings.images == memory_format::channels_last && (any_low_ || tuned) && may_reorder(ops)},
        wanted_{ops, chosen, settings.device.type()} {}

  /// `calls`: those of one segment.
  code compile(std::span<const recorded_call> calls) {
    code compiled{.any_low = any_low_, .channels_last = channels_last_};
    uses_.clear();
    compiled.instructions.reserve(calls.size());
    std::vector<std::size_t> open;
    for (const recorded_call& call : calls) {
      if (call.composite) {
        if (open.empty()) compiled.map.add(*call.composite, compiled.instructions.size(), nullptr);
        open.push_back(compiled.instructions.size());
        compiled.instructions.push_back({.op = *call.composite, .index = 0, .opens = true, .uniform = call.uniform});
      } else if (call.index) {
        if (open.empty())
          compiled.map.add(ops_[*call.index].op, compiled.instructions.size(), ops_[*call.index].parameter);
        add(compiled, ops_[*call.index], *call.index);
      } else {
        compiled.instructions[open.back()].end = static_cast<std::uint32_t>(compiled.instructions.size());
        open.pop_back();
      }
    }
    share(compiled);
    return compiled;
  }

  /// Returns: the parameters that all their readers want in one format below their own, with that format.
  std::unordered_map<const c10::TensorImpl*, at::ScalarType> low_parameters() const {
    std::unordered_map<const c10::TensorImpl*, at::ScalarType> found;
    for (const recorded_op& op : ops_) {
      for (const recorded_input& input : op.inputs) {
        if (op.parameter == nullptr || input.argument != op.parameter_argument || input.parameter < 0) continue;
        const auto format = wanted_.of(input.value);
        if (format && *format != input.full) found.emplace(op.parameter, *format);
      }
    }
    return found;
  }

 private:
  using cast_key = std::tuple<std::uint32_t, at::ScalarType, at::MemoryFormat>;  // value, format, layout

  void add(code& compiled, const recorded_op& op, std::uint32_t index) {
    const op_traits& known = traits(op.op);
    const product_precisions& products = chosen_[index];
    const precision chosen = products.forward;
    instruction now{.op = op.op, .index = index};
    compiled.removed = std::min(compiled.removed, op.removed);
    now.arguments = static_cast<std::uint16_t>(known.arguments.size());
    now.target = scalar_type(chosen);
    now.full = op.result;
    now.first_slot = static_cast<std::uint32_t>(compiled.slots.size());
    now.parameter = op.parameter;
    now.parameter_argument = op.parameter_argument;
    if (products.need_rounding()) now.products = products;
    if (op.role == op_role::choosable || op.role == op_role::full) {
      if (channels_last_ && known.is_convolution && (tuned_ || now.target != now.full)) {
        now.layout = known.word == "conv3d" ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
      }
      if (casts_ || now.layout != at::MemoryFormat::Preserve) add_slots(compiled, now, known, op);
    } else if (any_low_) {
      view_low_copy(compiled, now, op);
    }
    now.tf32 = chosen == precision::tf32;
    now.hands_on_full = any_low_ && op.hands_on_fp32;
    now.follows_written = casts_ && op.role == op_role::writes && !known.pointwise && !op.inputs.empty();
    now.wants_view = channels_last_ && known.is_aten_view;
    now.wants_contiguous = channels_last_ && !known.aten;
    if (channels_last_) now.drawn_in = op.drawn_in;
    now.gives_contiguous = channels_last_ && op.hands_on_fp32;
    choose_kernel(now, known);
    const bool is_tuned = tuned_ && (now.layout != at::MemoryFormat::Preserve || now.own.parts != 0);
    now.lowers = products.lowers() || is_tuned;
    if (any_low_ && settings_->device.is_cpu()) now.by_bits = kernel_with_same_results(known, op.parameter != nullptr);
    now.slow_path = now.tf32 || now.products || now.hands_on_full || now.follows_written || now.wants_view ||
                    now.wants_contiguous || !now.drawn_in.empty() || now.gives_contiguous || now.own.parts != 0 ||
                    now.by_bits != nullptr;
    compiled.instructions.push_back(now);
  }

  void choose_kernel(instruction& now, const op_traits& known) const {
    const auto chosen = kernels_.find(layers_[now.index]);
    if (chosen == kernels_.end()) return;
    const kernel* own = own_kernel(known, now.target, tuned_);
    if (own == nullptr || own != chosen->second.own) return;
    if (!own->wants_channels_last || channels_last_) now.own = chosen->second;
  }

  void add_slots(code& compiled, instruction& now, const op_traits& known, const recorded_op& op) {
    for (const recorded_input& input : op.inputs) {
      if (input.affine && keeps_affine(known, now.target, settings_->device.type())) continue;
      if (takes_as_is(known, chosen_[now.index], input.argument)) continue;
      const bool of_image = input.argument < 2;  // a convolution's input and weight
      const at::MemoryFormat layout = of_image ? now.layout : at::MemoryFormat::Preserve;
      cast_slot slot{input.argument, input.element};
      if (input.parameter >= 0) {
        // The model may store a parameter in the format of what it is multiplied by. It is cast back each time.
        if (now.target != input.full || layout != at::MemoryFormat::Preserve)
          slot.weight = weights_->entry_of(input.parameter, now.target, layout);
      } else {
        uses_[{input.value, now.target, layout}].push_back(compiled.slots.size());
      }
      now.lists = now.lists || input.element >= 0;
      compiled.slots.push_back(slot);
      ++now.slots;
    }
  }

  /// Has a view of a parameter (weight.t()) that is read in one low format only be a view of the parameter's low copy.
  /// A cast of the view itself would have to be made each time.
  void view_low_copy(code& compiled, instruction& now, const recorded_op& op) {
    if (op.inputs.size() != 1 || op.inputs.front().parameter < 0) return;
    const auto format = wanted_.of_view(op);
    const recorded_input& input = op.inputs.front();
    if (!format || *format == input.full) return;
    now.target = *format;
    now.lists = input.element >= 0;
    now.slots = 1;
    const auto entry = weights_->entry_of(input.parameter, now.target, at::MemoryFormat::Preserve);
    compiled.slots.push_back({.argument = input.argument, .element = input.element, .weight = entry, .viewed = true});
  }

  /// Inputs that are cast alike get one cast.
  void share(code& compiled) const {
    for (const auto& [key, uses] : uses_) {
      if (uses.size() < 2) continue;
      for (const std::size_t use : uses) compiled.slots[use].shared = static_cast<std::int32_t>(compiled.shared);
      compiled.slots[uses.back()].last_use = true;
      ++compiled.shared;
    }
  }

  std::span<const recorded_op> ops_;
  std::span<const std::string> layers_;
  std::span<const product_precisions> chosen_;
  const program_settings* settings_;
  low_weights* weights_;
  std::map<std::string, kernel_use> kernels_;  // by layer
  bool tuned_;
  bool any_low_, casts_, channels_last_;
  wanted_formats wanted_;
  std::map<cast_key, std::vector<std::size_t>> uses_;
};

}  // namespace comp::libtorch::detail
