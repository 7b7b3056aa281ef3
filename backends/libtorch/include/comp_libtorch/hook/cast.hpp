// SPDX-License-Identifier: Apache-2.0
// A tensor in another format, as autograd sees it: the gradient comes back in the tensor's own.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

namespace comp::libtorch::detail {

/// Takes the gradient of a cast back to the format of what was cast.
struct cast_backward final : torch::autograd::Node {
  cast_backward() = default;
  /// Of a copy that outlives its step: with the number of that step the engine would hold its gradient to the very end.
  struct kept {};
  explicit cast_backward(kept /*copy*/) : Node{std::numeric_limits<std::uint64_t>::max() - 1} {}
  at::ScalarType type = at::kFloat;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::Tensor& gradient = gradients.front();
    if (!gradient.defined() || gradient.scalar_type() == type) return {gradient};
    return {at::_ops::_to_copy::call(gradient, type, {}, {}, {}, false, at::MemoryFormat::Preserve)};
  }
  std::string name() const override { return "comp::cast_backward"; }
};

/// LibTorch counts references to nodes in std::shared_ptr up to 2.11, in its own intrusive_ptr in later versions.
template <class Node, class Pointer = decltype(torch::autograd::Edge::function), class... Arguments>
auto make_node(Arguments... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(arguments...);
  } else {
    return c10::make_intrusive<Node>(arguments...);
  }
}

/// `tensor` in `type` and `layout`; differentiable while gradients are on. For what is seen in every step the node is
/// made here: ATen's own way through its autograd kernel takes longer and gives the same gradients.
inline at::Tensor cast(const at::Tensor& tensor, at::ScalarType type, at::MemoryFormat layout) {
  if (tensor.scalar_type() == type) {
    return layout == at::MemoryFormat::Preserve ? tensor : tensor.contiguous(layout);
  }
  const bool recorded = at::GradMode::is_enabled() && tensor.requires_grad();
  const bool usual = tensor.layout() == at::kStrided && !torch::autograd::isFwGradDefined(tensor);
  if (!recorded || !usual) return at::_ops::_to_copy::call(tensor, type, {}, {}, {}, false, layout);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    result = at::_ops::_to_copy::call(tensor, type, {}, {}, {}, false, at::MemoryFormat::Preserve);
    if (layout != at::MemoryFormat::Preserve) result = result.contiguous(layout);  // both at once takes twice as long
  }
  auto node = make_node<cast_backward>();
  node->type = tensor.scalar_type();
  node->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
  torch::autograd::set_history(result, node);
  return result;
}

/// Whether an earlier cast of `tensor` serves now, as far as autograd is concerned.
inline bool differentiates_like(const at::Tensor& cast, const at::Tensor& tensor) {
  return (cast.requires_grad() || !tensor.requires_grad() || !at::GradMode::is_enabled()) &&
         (!cast.is_inference() || c10::InferenceMode::is_enabled());
}

}  // namespace comp::libtorch::detail
