// SPDX-License-Identifier: Apache-2.0
// Casts the arguments that no instruction of a plan lists: those of operators after a mismatch, of operators in
// evaluation, and of operators that write an argument.
#pragma once

#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>
#include <comp/core/op_info.hpp>
#include <comp_libtorch/hook/cast.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// Replaces each eligible tensor of `value` for which `wanted` holds by `make(tensor)`. A list is replaced by a new
/// one, because the caller still holds the old one.
void replace(at::IValue& value, at::DeviceType device, auto&& wanted, auto&& make) {
  const auto is_wanted = [&](const at::Tensor& t) { return is_eligible(t, device) && wanted(t); };
  if (value.isTensor()) {
    if (is_wanted(value.toTensor())) value = make(value.toTensor());
  } else if (value.isTensorList()) {
    bool any = false;
    for_each_tensor(value, [&](const at::Tensor& t, int) { any = any || is_wanted(t); });
    if (!any) return;
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& t : value.toTensorVector()) tensors.push_back(is_wanted(t) ? make(t) : t);
    value = std::move(tensors);
  }
}

/// Does the same to the last `count` values of the stack.
void replace(torch::jit::Stack& stack, std::size_t count, at::DeviceType device, auto wanted, auto make) {
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) replace(stack[i], device, wanted, make);
}

/// Returns: true for a scale or an offset without dimensions. Type promotion takes it in any format: the values beside
/// it decide the format of the result. Neither comp nor LibTorch's autocast casts it: in BF16 it would have three
/// digits.
inline bool is_number_beside_values(const at::Tensor& tensor, const op_traits& known,
                                    const torch::jit::Stack& arguments, at::DeviceType device) {
  if (!known.arithmetic || tensor.dim() != 0) return false;
  bool values = is_wrapped_number(tensor);
  for_each_tensor(arguments, known.arguments.size(), [&](const at::Tensor& t, std::size_t, int) {
    values = values || (t.dim() > 0 && t.layout() == at::kStrided && is_eligible(t, device));
  });
  return values;
}

/// Returns: true if a finite number among the arguments on the stack is beyond FP16, in which ATen refuses it.
inline bool has_number_beyond_fp16(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const at::IValue& value = stack[first + i];
    if (!value.isInt() && !value.isDouble()) continue;
    const auto* maybe = arguments[i].type()->castRaw<c10::OptionalType>();
    const bool is_size =
        (maybe == nullptr ? *arguments[i].type() : *maybe->getElementType()).kind() == c10::IntType::Kind;
    const double magnitude = std::abs(value.toScalar().toDouble());
    if (!is_size && std::isfinite(magnitude) && magnitude > std::numeric_limits<c10::Half>::max()) return true;
  }
  return false;
}

/// Returns: true if an argument says in which floating-point format the result is to be, as in softmax(x, dtype=float).
/// ATen converts what the operator reads to that format first.
inline bool asks_format(const op_traits& known, const torch::jit::Stack& stack) {
  for (std::size_t i = 0; i < known.argument_names.size(); ++i) {
    const at::IValue& value = stack[stack.size() - known.argument_names.size() + i];
    if (known.argument_names[i] == "dtype" && value.isInt()) return at::isFloatingType(value.toScalarType());
  }
  return false;
}

/// Returns: true for a norm with a bias and no weight: ATen's backward takes no FP32 bias beside a low input then.
inline bool has_bias_alone(const op_traits& known, const torch::jit::Stack& arguments) {
  bool weight = false, bias = false;
  for_each_tensor(arguments, known.arguments.size(), [&](const at::Tensor&, std::size_t i, int) {
    if (known.arguments[i] == argument_use::affine) (known.argument_names[i] == "bias" ? bias : weight) = true;
  });
  return bias && !weight;
}

/// Casts what the operator reads to `to`. What it writes, running statistics and tensors in the format `kept` stay.
/// `affine_too`: a norm's weight and bias are cast, too.
inline void cast_read(torch::jit::Stack& stack, const op_traits& known, at::ScalarType to, at::DeviceType device,
                      bool affine_too, std::optional<at::ScalarType> kept = {}) {
  const std::size_t first = stack.size() - known.arguments.size();
  for (std::size_t i = 0; i < known.arguments.size(); ++i) {
    const argument_use use = known.arguments[i];
    const bool affine = use == argument_use::affine && (affine_too || has_bias_alone(known, stack));
    if (use != argument_use::read && !affine) continue;
    replace(
        stack[first + i], device,
        [&](const at::Tensor& t) {
          return t.scalar_type() != to && t.scalar_type() != kept && !is_number_beside_values(t, known, stack, device);
        },
        [&](const at::Tensor& t) { return cast(t, to, at::MemoryFormat::Preserve); });
  }
}

/// Returns: FP64 if what the operator reads has a tensor in it, other than a number beside values; else FP32. It is the
/// format that the operator computes in without a plan, as types are promoted.
inline at::ScalarType full_format(const torch::jit::Stack& stack, const op_traits& known, at::DeviceType device) {
  at::ScalarType full = at::kFloat;
  for_each_tensor(stack, known.arguments.size(), [&](const at::Tensor& t, std::size_t i, int) {
    const bool reads = known.arguments[i] == argument_use::read || known.arguments[i] == argument_use::affine;
    if (reads && t.scalar_type() == at::kDouble && is_eligible(t, device) && !is_wrapped_number(t) &&
        !is_number_beside_values(t, known, stack, device))
      full = at::kDouble;
  });
  return full;
}

/// Casts what the operator reads to the format that it computes in without a plan.
inline void cast_read_to_full(torch::jit::Stack& stack, const op_traits& known, at::DeviceType device) {
  cast_read(stack, known, full_format(stack, known, device), device, true);
}

/// Casts the inputs of an operator that writes and does not promote (index_add_, mm.out) to the format of what it
/// writes.
inline void follow_written(torch::jit::Stack& stack, const op_traits& known, at::DeviceType device) {
  std::optional<at::ScalarType> written;
  for_each_tensor(stack, known.arguments.size(), [&](const at::Tensor& t, std::size_t i, int) {
    if (!written && known.arguments[i] == argument_use::written && is_eligible(t, device)) written = t.scalar_type();
  });
  if (written) cast_read(stack, known, *written, device, true);
}

/// Casts results to `full`, for code that comp does not see. The caller of an in-place operator gets its own tensor
/// back whatever is on the stack, so that tensor stays low.
inline void hand_on(const c10::OperatorHandle& op, torch::jit::Stack& stack, at::ScalarType full,
                    at::DeviceType device) {
  replace(
      stack, op.schema().returns().size(), device,
      [full](const at::Tensor& t) { return is_below(t.scalar_type(), full); },
      [full](const at::Tensor& t) { return cast(t, full, at::MemoryFormat::Preserve); });
}

/// Casts the arguments of an operator outside the recorded sequence: whatever computes does it in FP32, or FP64.
inline void cast_to_full(torch::jit::Stack& stack, const op_traits& known, at::DeviceType device) {
  if (known.is_in_place && !known.pointwise) follow_written(stack, known, device);
  if (!known.is_in_place && !known.is_view && !known.is_copy) cast_read_to_full(stack, known, device);
}

/// Casts the arguments of an operator in a block of the author's, if no recording says what it reads without a plan. If
/// autocast is off in the block, it reads FP32 or FP64. In an autocast of the model's own, tensors in that autocast's
/// format stay and the rest becomes FP32 or FP64.
inline void cast_for_author(torch::jit::Stack& stack, const op_traits& known, author_choice block,
                            at::DeviceType device) {
  if (block == author_choice::autocast_off) return cast_to_full(stack, known, device);
  if (known.is_in_place || known.is_view || known.is_copy) return;
  cast_read(stack, known, full_format(stack, known, device), device, true, at::autocast::get_autocast_dtype(device));
}

/// Makes the first argument of aten::view contiguous if its strides (channels-last) do not allow the new shape.
inline void make_viewable(torch::jit::Stack& stack) {
  at::IValue& value = stack[stack.size() - 2];
  const at::Tensor& tensor = value.toTensor();
  if (tensor.is_contiguous()) return;
  if (has_symbolic_sizes(tensor)) {
    value = tensor.contiguous();
    return;
  }
  const auto shape = at::infer_size(stack.back().toIntVector(), tensor.numel());
  if (!at::detail::computeStride(tensor.sizes(), tensor.strides(), at::IntArrayRef{shape})) value = tensor.contiguous();
}

/// Returns: the axes of `t`, those with the largest strides first.
inline std::vector<std::int64_t> order_in_memory(const at::Tensor& t) {
  std::vector<std::int64_t> axes(static_cast<std::size_t>(t.dim()));
  std::iota(axes.begin(), axes.end(), 0);
  std::ranges::stable_sort(axes, std::ranges::greater{}, [&](std::int64_t axis) { return t.stride(axis); });
  return axes;
}
/// Copies a tensor that lies in another order in memory. One of another rank stays.
inline void lay_in_order(at::IValue& value, const std::vector<std::int64_t>& axes) {
  const at::Tensor& t = value.toTensor();
  if (t.dim() != std::ssize(axes) || t.permute(axes).is_contiguous()) return;
  std::vector<std::int64_t> places(axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i)
    places[static_cast<std::size_t>(axes[i])] = static_cast<std::int64_t>(i);
  value = t.permute(axes).contiguous().permute(places);
}

inline void make_contiguous(torch::jit::Stack& stack, std::size_t arguments, at::DeviceType device) {
  replace(
      stack, arguments, device, [](const at::Tensor& t) { return t.layout() == at::kStrided && !t.is_contiguous(); },
      [](const at::Tensor& t) { return t.contiguous(); });
}

}  // namespace comp::libtorch::detail
