// SPDX-License-Identifier: Apache-2.0
// Finds out by a trial whether an operator runs in low precision. The name does not tell for operators on sparse
// tensors and for the user's own. Such an operator is run on casts of its inputs while it is recorded, without
// gradients. The results are dropped and the random generators are put back.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy.h>

#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <exception>
#include <vector>

namespace comp::libtorch::detail {

/// Returns: true if `op` takes inputs of BF16 or of FP16 on this device; if it reads FP64, of FP32.
inline bool runs_low(const c10::OperatorHandle& op, const op_traits& known, const torch::jit::Stack& stack,
                     at::DeviceType device) {
  const at::NoGradGuard no_gradients;
  const generator_guard random{device};
  const std::size_t first = stack.size() - known.arguments.size();
  const bool wide = full_format(stack, known, device) == at::kDouble;
  for (const auto to : wide ? std::vector{at::kFloat} : std::vector{at::kBFloat16, at::kHalf}) {
    torch::jit::Stack copy;
    try {
      for (std::size_t i = 0; i < known.arguments.size(); ++i) {
        copy.push_back(stack[first + i]);
        if (known.arguments[i] != argument_use::read) continue;
        replace(
            copy.back(), device, [](const at::Tensor&) { return true; },
            [&](const at::Tensor& t) { return at::_to_copy(t, t.options().dtype(to)); });
      }
      op.callBoxed(copy);
      return true;
    } catch (const std::exception&) {  // no kernel for this format
    }
  }
  return false;
}

}  // namespace comp::libtorch::detail
