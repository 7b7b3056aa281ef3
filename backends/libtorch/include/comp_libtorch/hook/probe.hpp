// SPDX-License-Identifier: Apache-2.0
// Finds out by a trial whether an operator runs in low precision. The name does not tell for operators on sparse
// tensors and for the user's own, nor which of ATen's have a kernel on this device. Such an operator is run on casts of
// its inputs while it is recorded. The results are dropped and the random generators are put back.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/ones_like.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>

#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <exception>
#include <vector>

namespace comp::libtorch::detail {

/// Returns: true if `op` takes inputs of BF16 or of FP16 on this device; if it reads FP64, of FP32. `backward`: its
/// gradients have to run, too.
inline bool runs_low(const c10::OperatorHandle& op, const op_traits& known, const torch::jit::Stack& stack,
                     at::DeviceType device, bool backward) {
  const at::AutoGradMode gradients{backward && at::GradMode::is_enabled()};
  const at::impl::SavedTensorDefaultHooksTLS hooks = at::SavedTensorDefaultHooks::get_tls_state();
  at::SavedTensorDefaultHooks::set_tls_state({});  // a checkpoint counts what is saved
  const auto put_back = c10::make_scope_exit([&] { at::SavedTensorDefaultHooks::set_tls_state(hooks); });
  const generator_guard random{device};
  const std::size_t first = stack.size() - known.arguments.size();
  const bool wide = full_format(stack, known, device) == at::kDouble;
  for (const auto to : wide ? std::vector{at::kFloat} : std::vector{at::kBFloat16, at::kHalf}) {
    torch::jit::Stack copy;
    std::vector<at::Tensor> leaves, roots, ones;
    try {
      for (std::size_t i = 0; i < known.arguments.size(); ++i) {
        copy.push_back(stack[first + i]);
        const argument_use use = known.arguments[i];
        if (use == argument_use::affine) continue;
        replace(
            copy.back(), device, [](const at::Tensor&) { return true; },
            [&](const at::Tensor& t) {
              if (use != argument_use::read) return t.detach().clone();  // running statistics stay as they are
              at::Tensor leaf = at::_to_copy(t.detach(), t.options().dtype(to));
              if (at::GradMode::is_enabled() && t.requires_grad()) leaves.push_back(leaf.requires_grad_());
              return leaf;
            });
      }
      op.callBoxed(copy);
      for_each_tensor(copy, op.schema().returns().size(), [&](const at::Tensor& t, std::size_t, int) {
        if (!t.requires_grad()) return;
        roots.push_back(t);
        ones.push_back(at::ones_like(t));
      });
      if (!leaves.empty() && !roots.empty()) torch::autograd::grad(roots, leaves, ones, {}, false, true);
      return true;
    } catch (const std::exception&) {  // no kernel for this format
    }
  }
  return false;
}

}  // namespace comp::libtorch::detail
