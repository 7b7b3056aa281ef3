// SPDX-License-Identifier: Apache-2.0
// The tensors among an operator's arguments and results, their identity, and whether a plan may cast them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <comp/core/op_info.hpp>
#include <comp/core/precision.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace comp::libtorch::detail {

/// Returns: the format of the tensors that an operator in precision `p` reads, and gives but for bf16_fp32. An operator
/// below 16 bits rounds what it reads itself, because a scale goes with it.
constexpr at::ScalarType scalar_type(precision p) {
  switch (p) {
    case precision::fp64:
      return at::kDouble;
    case precision::fp32:
    case precision::tf32:  // stored as FP32
      return at::kFloat;
    case precision::bf16:
      return at::kBFloat16;
    case precision::fp16:
      return at::kHalf;
    case precision::fp8_e4m3:
    case precision::fp8_e5m2:
    case precision::fp8_block128:
    case precision::mxfp8:
    case precision::mxfp4:
    case precision::nvfp4:
    case precision::bf16_fp32:  // of what it reads
      return at::kBFloat16;
  }
  return at::kFloat;
}

/// Returns: the format of a state that a training keeps, as an optimizer's moment, in precision `p`; nothing if none is
/// kept in it.
constexpr std::optional<at::ScalarType> type_of_state(precision p) {
  if (p == precision::fp8_e4m3) return at::kFloat8_e4m3fn;
  if (p == precision::fp32 || p == precision::bf16) return scalar_type(p);
  return std::nullopt;
}

/// Returns: true for the formats that plans lower.
constexpr bool is_full(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }
/// Returns: true for the formats that plans cast between. Complex tensors stay as the user has them.
constexpr bool is_plannable(at::ScalarType type) { return is_full(type) || type == at::kBFloat16 || type == at::kHalf; }
/// Returns: true if a tensor in `type` has to be cast to be in `full`, FP32 or FP64, again.
constexpr bool is_below(at::ScalarType type, at::ScalarType full) {
  return is_plannable(type) && type != full && type != at::kDouble;
}
constexpr precision precision_of_full(at::ScalarType type) {
  return type == at::kDouble ? precision::fp64 : precision::fp32;
}

/// Returns: the values of `t`, which is of type T, as at::TensorBase::const_data_ptr<T>() does. That one's symbol has
/// another name for Clang 18 and newer than for GCC, which LibTorch is built with, so a program would not link.
template <class T>
const T* values_of(const at::Tensor& t) {
  TORCH_INTERNAL_ASSERT(t.scalar_type() == c10::CppTypeToScalarType<T>::value);
  return static_cast<const T*>(t.const_data_ptr());
}

inline bool is_eligible(const at::TensorImpl& tensor, at::DeviceType device) {
  return is_plannable(c10::typeMetaToScalarType(tensor.dtype())) && tensor.device().type() == device;
}
inline bool is_eligible(const at::Tensor& tensor, at::DeviceType device) {
  return tensor.defined() && is_eligible(*tensor.unsafeGetTensorImpl(), device);
}

/// Returns: true for a number of the program's text, as 0.1 in `0.1 * x`. Whatever stands beside it decides the format.
inline bool is_wrapped_number(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

/// Returns: how often the tensor was written in place; 0 for inference tensors, which do not count it.
inline std::uint32_t version(at::TensorImpl& tensor) {
  return tensor.is_inference() ? 0 : tensor.version_counter().current_version();
}

/// Calls f(tensor, element) for each defined tensor in `value`: element is -1 for a tensor, else its index in a list.
void for_each_tensor(const at::IValue& value, auto&& f) {
  if (value.isTensor()) {
    if (const at::Tensor& tensor = value.toTensor(); tensor.defined()) f(tensor, -1);
  } else if (value.isList()) {
    int element = 0;
    for (const at::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) f(item.toTensor(), element);
      ++element;
    }
  }
}

/// Calls f(tensor, argument, element) for the last `count` values of the stack.
void for_each_tensor(const torch::jit::Stack& stack, std::size_t count, auto&& f) {
  const std::size_t first = stack.size() - count;
  for (std::size_t i = 0; i < count; ++i) {
    for_each_tensor(stack[first + i], [&](const at::Tensor& tensor, int element) { f(tensor, i, element); });
  }
}

/// Returns: the tensors that a plan may cast among the last `count` values of the stack.
inline std::vector<at::Tensor> eligible_tensors(const torch::jit::Stack& stack, std::size_t count,
                                                at::DeviceType device) {
  std::vector<at::Tensor> eligible;
  for_each_tensor(stack, count, [&](const at::Tensor& t, std::size_t, int) {
    if (is_eligible(t, device)) eligible.push_back(t);
  });
  return eligible;
}

/// Returns: true if the sizes are no numbers: those of a nested tensor, and while torch.compile captures for any size.
inline bool has_symbolic_sizes(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

/// Returns: true for a layout (CSR, CSC, BSR, BSC) whose casts ATen does not differentiate.
inline bool is_compressed(const at::Tensor& tensor) {
  const at::Layout l = tensor.layout();
  return l == at::kSparseCsr || l == at::kSparseCsc || l == at::kSparseBsr || l == at::kSparseBsc;
}

inline tensor_info describe(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return {.shape = has_symbolic_sizes(tensor) ? std::vector<std::int64_t>{} : tensor.sizes().vec(),
          .dtype = type == at::kBFloat16        ? precision::bf16
                   : type == at::kHalf          ? precision::fp16
                   : type == at::kFloat8_e4m3fn ? precision::fp8_e4m3
                   : type == at::kFloat8_e5m2   ? precision::fp8_e5m2
                                                : precision_of_full(type),
          .floating = is_plannable(type) || type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2};
}

}  // namespace comp::libtorch::detail
