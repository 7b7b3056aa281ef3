// SPDX-License-Identifier: Apache-2.0
// The interface by which the operators that a thread dispatches come to comp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>

namespace comp::libtorch::detail {

class session;
/// Makes a session for code of an earlier region that is run again, as a checkpoint is in the backward. The session
/// begins at the operator at which that code began.
using resumption = std::function<std::unique_ptr<session>()>;

/// Is called with each operator that this thread dispatches, and has to run it. The arguments are on top of the stack.
/// `keys`: the dispatch keys of the call.
class listener {
 public:
  virtual void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;
  /// Asked before called() if the arguments are at hand unboxed, because boxing takes time. `tensors[i]` is argument i,
  /// null if that is no tensor. Returns: false to get the arguments on a stack, by called(); true to have the operator
  /// run as it is, with `casts[i]` in place of argument i if `casts[i]` is defined.
  virtual bool called_directly(const c10::OperatorHandle& /*op*/, const at::Tensor* const* /*tensors*/,
                               at::Tensor* /*casts*/) {
    return false;
  }
  /// Returns: how the operators from here on are run again later (checkpoint.hpp); null if that needs no listener.
  virtual resumption from_here() const { return {}; }
  listener() = default;
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;

 protected:
  ~listener() = default;
};

inline thread_local listener* listening = nullptr;
inline thread_local const torch::autograd::Node* listening_in = nullptr;  // the backward's node in which that began
inline thread_local bool in_checkpoint = false;  // gradients are off in it, but the backward will compute them
inline c10::DispatchKey claimed_key = c10::DispatchKey::Undefined;  // set once, by dispatch_key.hpp
inline c10::DispatchKeySet claimed_keys = {};                       // that one, and the one for random numbers

/// Returns: true for a tensor on the CPU if only autograd would see an operator on it: no mode, no subclass, no
/// transform.
inline bool only_autograd_sees(const at::TensorImpl& tensor) {
  using enum c10::DispatchKey;
  constexpr c10::DispatchKeySet of_tensors{CPU, AutogradCPU, ADInplaceOrView, AutocastCPU};
  const auto of_thread = of_tensors | c10::default_included_set | claimed_keys;
  return of_tensors.has_all(tensor.key_set()) && of_thread.has_all(c10::impl::tls_local_dispatch_key_set().included_);
}

/// Returns: true inside a transform of torch.func (grad, vmap, jvp).
inline bool in_transform() {
  return c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}
inline thread_local bool in_inner_level = false;  // a transform dispatches an operator again that has had its listener
/// Lives while an operator runs that came to its listener in a transform. The transform dispatches it again at each of
/// its inner levels; a cast there would be hidden from the outer levels' autograd, so there the listener is not called.
class inner_levels_pass {
 public:
  inner_levels_pass() { in_inner_level = before_ || in_transform(); }
  ~inner_levels_pass() { in_inner_level = before_; }
  inner_levels_pass(const inner_levels_pass&) = delete;
  inner_levels_pass& operator=(const inner_levels_pass&) = delete;

 private:
  bool before_ = in_inner_level;
};

/// Returns: the listener that an operator comes to; null if there is none. The operators of a backward inside a region
/// (torch.autograd.grad in a loss) come to none: their formats follow from the forward's.
inline listener* present_listener() {
  if (listening == nullptr || in_inner_level) return nullptr;
  return torch::autograd::get_current_node().get() == listening_in ? listening : nullptr;
}

}  // namespace comp::libtorch::detail
