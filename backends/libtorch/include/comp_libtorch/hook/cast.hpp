// SPDX-License-Identifier: Apache-2.0
// Casts a tensor to another format so that autograd sees it: the gradient comes back in the tensor's own format.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/BFloat16.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <comp_libtorch/hook/listener.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

namespace comp::libtorch::detail {

/// Returns: true for converting a small dense CPU tensor between FP32 and BF16, if only autograd would see it.
inline bool converts_small(const at::TensorImpl& tensor, at::ScalarType to) {
  constexpr std::int64_t small = 512;
  const at::ScalarType from = c10::typeMetaToScalarType(tensor.dtype());
  const bool formats = (from == at::kFloat && to == at::kBFloat16) || (from == at::kBFloat16 && to == at::kFloat);
  return formats && only_autograd_sees(tensor) && tensor.numel() <= small && tensor.is_non_overlapping_and_dense();
}

/// Returns: `tensor` in another format and the same order in memory; autograd does not see it. A few numbers are
/// converted here: ATen takes two calls of its dispatcher, several times as long, and gives the same bits.
inline at::Tensor converted(const at::Tensor& tensor, at::ScalarType to) {
  if (!converts_small(*tensor.unsafeGetTensorImpl(), to))
    return at::_ops::_to_copy::call(tensor, to, {}, {}, {}, false, at::MemoryFormat::Preserve);
  at::Tensor result{at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), to)};
  if (to == at::kBFloat16) {
    std::copy_n(values_of<float>(tensor), tensor.numel(), result.mutable_data_ptr<c10::BFloat16>());
  } else {
    std::copy_n(values_of<c10::BFloat16>(tensor), tensor.numel(), result.mutable_data_ptr<float>());
  }
  return result;
}

/// The autograd node of a cast. It casts the gradient back to the format of what was cast.
struct cast_backward final : torch::autograd::Node {
  cast_backward() = default;
  /// For a copy that outlives its step. The engine runs nodes with higher numbers first. With the number of the step
  /// that made the copy, this node would run last, and the engine would hold its gradient until then.
  struct kept_copy {};
  explicit cast_backward(kept_copy /*copy*/) : Node{std::numeric_limits<std::uint64_t>::max() - 1} {}
  at::ScalarType type = at::kFloat;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::Tensor& gradient = gradients.front();
    if (!gradient.defined() || gradient.scalar_type() == type) return {gradient};
    if (!at::GradMode::is_enabled()) return {converted(gradient, type)};
    // differentiable, for a second derivative
    return {at::_ops::_to_copy::call(gradient, type, {}, {}, {}, false, at::MemoryFormat::Preserve)};
  }
  std::string name() const override { return "comp::cast_backward"; }
};

/// Makes an autograd node. LibTorch holds nodes in std::shared_ptr up to 2.11, in its own intrusive_ptr in later
/// versions.
template <class Node, class Pointer = decltype(torch::autograd::Edge::function), class... Arguments>
auto make_node(Arguments... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(arguments...);
  } else {
    return c10::make_intrusive<Node>(arguments...);
  }
}

/// Has autograd know that `result` is a cast of `tensor`.
inline void record_cast(const at::Tensor& result, const at::Tensor& tensor) {
  auto node = make_node<cast_backward>();
  node->type = tensor.scalar_type();
  node->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
  torch::autograd::set_history(result, node);
}

/// Returns: whether a cast of `tensor` may get its autograd node here. A transform of torch.func has an autograd of its
/// own, which has to see the cast.
inline bool is_usual(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !torch::autograd::isFwGradDefined(tensor) && !in_transform();
}

/// Returns: `tensor` in `type` and `layout`; differentiable while gradients are on. The common case makes its node
/// here: ATen's way through its autograd kernel takes longer and gives the same gradients.
inline at::Tensor cast(const at::Tensor& tensor, at::ScalarType type, at::MemoryFormat layout) {
  if (tensor.scalar_type() == type) {
    return layout == at::MemoryFormat::Preserve ? tensor : tensor.contiguous(layout);
  }
  const bool recorded = at::GradMode::is_enabled() && tensor.requires_grad(), usual = is_usual(tensor);
  if (!recorded && usual && layout == at::MemoryFormat::Preserve) return converted(tensor, type);
  if (!recorded || !usual) return at::_ops::_to_copy::call(tensor, type, {}, {}, {}, false, layout);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    result = converted(tensor, type);
    if (layout != at::MemoryFormat::Preserve) result = result.contiguous(layout);  // both at once takes twice as long
  }
  record_cast(result, tensor);
  return result;
}

/// Returns: the memory of `copy`, an earlier cast of `tensor`, with an autograd node of its own, so that the gradients
/// of all who get one are added in the tensor's format.
inline at::Tensor cast_again(const at::Tensor& copy, const at::Tensor& tensor) {
  if (!at::GradMode::is_enabled() || !copy.requires_grad() || !is_usual(tensor)) return copy;
  at::Tensor alias = copy.tensor_data();
  record_cast(alias, tensor);
  return alias;
}

/// Returns: `copy`, an earlier cast of `tensor`, for one more reader. Gradients are added as under torch.autocast,
/// which casts for each reader; of a leaf it keeps the cast, and they meet in that.
inline at::Tensor for_next_reader(const at::Tensor& copy, const at::Tensor& tensor) {
  return tensor.is_leaf() ? copy : cast_again(copy, tensor);
}

/// Returns: whether autograd lets `cast`, an earlier cast of `tensor`, stand for a new one. It does not if gradients
/// are wanted now and were off then, or if the cast was made in inference mode and this is none.
inline bool differentiates_like(const at::Tensor& cast, const at::Tensor& tensor) {
  return (cast.requires_grad() || !tensor.requires_grad() || !at::GradMode::is_enabled()) &&
         (!cast.is_inference() || c10::InferenceMode::is_enabled());
}

}  // namespace comp::libtorch::detail
