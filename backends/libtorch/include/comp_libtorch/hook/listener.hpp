// SPDX-License-Identifier: Apache-2.0
// The listener to the operators that a thread dispatches.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/function.h>

#include <comp/core/error.hpp>
#include <functional>
#include <memory>

namespace comp::libtorch::detail {

class session;
/// Begins a region anew where an earlier one was, for code of it that is run again.
using resumption = std::function<std::unique_ptr<session>()>;

/// Called with each operator that this thread dispatches, and with its arguments on top of the stack; runs it. `keys`:
/// those that the dispatcher chose it by.
class listener {
 public:
  virtual void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;
  /// Asked first where arguments are at hand unboxed: `tensors[i]` is argument i, null where it is no tensor. Returns:
  /// false to be called with them on a stack; true to have the operator run as it is, with `casts[i]` in place of
  /// argument i where that is defined.
  virtual bool called_directly(const c10::OperatorHandle& /*op*/, const at::Tensor* const* /*tensors*/,
                               at::Tensor* /*casts*/) {
    return false;
  }
  /// The operators that come next are to be run again later (checkpoint.hpp): as from here. Null: without a listener.
  virtual resumption from_here() const { return {}; }
  listener() = default;
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;

 protected:
  ~listener() = default;
};

inline thread_local listener* listening = nullptr;
inline thread_local bool in_checkpoint = false;  // gradients are off, and yet there will be some
inline c10::DispatchKey claimed_key = c10::DispatchKey::Undefined;

/// Throws: `error` when an autograd node is being evaluated on this thread.
inline void require_no_backward() {
  require<error>(torch::autograd::get_current_node() == nullptr,
                 "an operator of a backward pass was dispatched in a region (a region is for the forward; precisions "
                 "of the backward follow from it): call backward() after the region has ended");
}

}  // namespace comp::libtorch::detail
