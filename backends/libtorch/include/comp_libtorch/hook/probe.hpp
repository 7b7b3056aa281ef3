// SPDX-License-Identifier: Apache-2.0
// Can an operator run in low precision? Asked once, while recording, of those whose name does not tell: operators on
// sparse tensors and the user's own. It is run again on casts of its inputs, without gradients; results are dropped and
// the random generator is put back.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy.h>

#include <array>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <exception>

namespace comp::libtorch::detail {

class generator_guard {
 public:
  explicit generator_guard(at::DeviceType device)
      : generator_{at::globalContext().defaultGenerator(
            at::Device{device, device == at::kCPU ? c10::DeviceIndex{-1} : c10::DeviceIndex{0}})},
        before_{generator_.get_state()} {}
  ~generator_guard() { generator_.set_state(before_); }
  generator_guard(const generator_guard&) = delete;
  generator_guard& operator=(const generator_guard&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

inline at::IValue lowered(const at::IValue& value, at::ScalarType to, at::DeviceType device) {
  const auto low = [&](const at::Tensor& t) {
    return is_eligible(t, device) ? at::_to_copy(t, t.options().dtype(to)) : t;
  };
  if (value.isTensor()) return low(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> tensors;
  for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(low(tensor));
  return tensors;
}

/// True when `op` takes inputs of BF16 or of FP16 on this device.
inline bool runs_low(const c10::OperatorHandle& op, const op_traits& known, const torch::jit::Stack& stack,
                     at::DeviceType device) {
  const at::NoGradGuard no_gradients;
  const generator_guard random{device};
  const std::size_t first = stack.size() - known.arguments.size();
  for (const auto to : std::array{at::kBFloat16, at::kHalf}) {
    torch::jit::Stack copy;
    try {
      for (std::size_t i = 0; i < known.arguments.size(); ++i) {
        const bool casts = known.arguments[i] == argument_use::read;
        copy.push_back(casts ? lowered(stack[first + i], to, device) : stack[first + i]);
      }
      op.callBoxed(copy);
      return true;
    } catch (const std::exception&) {
    }
  }
  return false;
}

}  // namespace comp::libtorch::detail
