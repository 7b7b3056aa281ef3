// SPDX-License-Identifier: Apache-2.0
// Casts what an operator reads to the format that its instruction says. A tensor that several operators read is cast
// once in a region, and so is a weight.
#pragma once

#include <ATen/core/stack.h>

#include <comp_libtorch/hook/cast.hpp>
#include <comp_libtorch/plan/instructions.hpp>
#include <comp_libtorch/plan/low_weights.hpp>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace comp::libtorch::detail {

/// The casts of one region.
class input_casts {
 public:
  /// `of` and `weights` outlive this. `keeps_weights`: the memory of low weights is kept.
  input_casts(const code& of, low_weights& weights, at::DeviceType device, bool keeps_weights)
      : code_{of}, weights_{weights}, device_{device}, keeps_weights_{keeps_weights}, shared_(of.shared) {}

  void cast_inputs(const instruction& now, torch::jit::Stack& stack) {
    const std::size_t first = stack.size() - now.arguments;
    const cast_slot* const begin = code_.slots.data() + now.first_slot;
    for (const cast_slot* slot = begin; slot != begin + now.slots; ++slot) {
      at::IValue& value = stack[first + slot->argument];
      if (slot->element >= 0) {
        cast_element(now, *slot, value, slot != begin && slot[-1].argument == slot->argument);
      } else if (value.isTensor() && wants_cast(*value.unsafeToTensorImpl(), now)) {
        value = cast_for_slot(now, *slot, value.toTensor());
      }
    }
  }

  bool wants_cast(const at::TensorImpl& tensor, const instruction& now) const {
    const at::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
    if (type == now.target && now.layout == at::MemoryFormat::Preserve) return false;
    return is_plannable(type) && tensor.device_type() == device_;
  }

  at::Tensor cast_for_slot(const instruction& now, const cast_slot& slot, const at::Tensor& tensor) {
    if (in_transform()) return cast(tensor, now.target, at::MemoryFormat::Preserve);
    if (slot.weight >= 0) {
      const at::Tensor copy = captures_ ? cast_once(captured_weights_[slot.weight], now, slot, tensor)
                                        : weights_.get(slot.weight, tensor, keeps_weights_);
      return slot.viewed ? cast_again(copy, tensor) : copy;
    }
    if (slot.shared < 0) return cast(tensor, now.target, layout(now, slot, tensor));
    shared_cast& shared = shared_[static_cast<std::size_t>(slot.shared)];
    at::Tensor copy =
        shared.is_of(tensor) ? for_next_reader(shared.copy, tensor) : cast_once(shared, now, slot, tensor);
    if (slot.last_use) shared = {};
    return copy;
  }

  /// While on, operators run on tensors without data (capture.hpp). Copies of these are not mixed with others.
  void capture(bool on) {
    captures_ = on;
    captured_weights_.clear();
    shared_.assign(shared_.size(), {});
  }

 private:
  /// A cast that several operators of the forward read.
  struct shared_cast {
    at::Tensor source;
    at::Tensor copy;
    std::uint32_t source_version = 0;
    std::uint32_t copy_version = 0;

    bool is_of(const at::Tensor& tensor) const {
      return source.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl() && copy.defined() &&
             source_version == version(*tensor.unsafeGetTensorImpl()) &&
             copy_version == version(*copy.unsafeGetTensorImpl()) && differentiates_like(copy, tensor);
    }
  };

  /// Casts an element of a list. `is_copy`: the list was copied for an element before; the caller's own stays as it is.
  void cast_element(const instruction& now, const cast_slot& slot, at::IValue& value, bool is_copy) {
    if (!value.isTensorList()) return;
    if (!is_copy) value = value.toTensorList().copy();
    c10::List<at::Tensor> list = value.toTensorList();
    const auto element = static_cast<std::size_t>(slot.element);
    if (element >= list.size()) return;
    const at::Tensor tensor = list.get(element);
    if (tensor.defined() && wants_cast(*tensor.unsafeGetTensorImpl(), now))
      list.set(element, cast_for_slot(now, slot, tensor));
  }

  static at::Tensor cast_once(shared_cast& shared, const instruction& now, const cast_slot& slot,
                              const at::Tensor& tensor) {
    if (!shared.is_of(tensor)) {
      shared.copy = cast(tensor, now.target, layout(now, slot, tensor));
      shared.source = tensor;
      shared.source_version = version(*tensor.unsafeGetTensorImpl());
      shared.copy_version = version(*shared.copy.unsafeGetTensorImpl());
    }
    return shared.copy;
  }

  static at::MemoryFormat layout(const instruction& now, const cast_slot& slot, const at::Tensor& tensor) {
    const bool image = slot.argument < 2 && tensor.dim() == (now.layout == at::MemoryFormat::ChannelsLast3d ? 5 : 4);
    return image ? now.layout : at::MemoryFormat::Preserve;
  }

  const code& code_;
  low_weights& weights_;
  at::DeviceType device_;
  bool keeps_weights_;
  std::vector<shared_cast> shared_;
  bool captures_ = false;
  std::unordered_map<std::int32_t, shared_cast> captured_weights_ = {};  // low copies, by low_weights' numbers
};

}  // namespace comp::libtorch::detail
