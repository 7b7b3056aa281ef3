// SPDX-License-Identifier: Apache-2.0
// Adds a bias to a low tensor in place, with the bits of ATen's add_ in less time. torch::nn::Linear multiplies and
// then adds its bias, unless its input has two dimensions. Under a plan the product is BF16 and the bias FP32, for
// which ATen has no vectors: it takes 3 times as long as for two BF16 tensors. As bits are the same, this is no choice.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <comp_libtorch/kernels/kernel.hpp>
#include <comp_libtorch/kernels/vectors.hpp>
#include <comp_libtorch/support/parallel.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstdint>

namespace comp::libtorch::detail {

/// Adds `bias` to each row of `to`; sums are FP32 and are rounded.
inline void add_to_rows(const at::Tensor& to, const at::Tensor& bias) {
  const std::int64_t width = bias.numel();
  auto* numbers = static_cast<std::uint16_t*>(to.mutable_data_ptr());
  const auto* added = values_of<float>(bias);
  in_parallel(to.numel() / width, std::max<std::int64_t>(1, 32768 / width), [=](std::int64_t first, std::int64_t last) {
    run_widest([=](auto lanes) __attribute__((always_inline)) {
      using floats = typename vectors<lanes>::floats;
      for (std::int64_t row = first; row < last; ++row) {
        std::uint16_t* at = numbers + row * width;
        std::int64_t i = 0;
        for (; i + lanes <= width; i += lanes) {
          floats number, addend;
          load_bf16<lanes>(at + i, number);
          load(added + i, addend);
          typename vectors<lanes>::halves sum;
          round_to_bf16<lanes>(number + addend, sum);
          store(sum, at + i);
        }
        for (; i < width; ++i) {
          auto* one = reinterpret_cast<c10::BFloat16*>(at + i);
          *one = static_cast<c10::BFloat16>(static_cast<float>(*one) + added[i]);
        }
      }
    });
  });
}

struct added_bias : torch::autograd::Function<added_bias> {
  static at::Tensor forward(torch::autograd::AutogradContext* kept, const at::Tensor& to, const at::Tensor& bias) {
    kept->mark_dirty({to});
    add_to_rows(to, bias);
    return to;
  }
  /// autograd sums the bias's gradient over rows, as it does for ATen's add_.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*kept*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], gradients[0]};
  }
};

/// Runs aten::add_.Tensor, whose three arguments are on the stack, if it adds an FP32 bias to BF16 rows. Returns:
/// false, with the stack as it was, for other arguments.
inline bool add_bias(torch::jit::Stack& stack) {
  const at::Tensor to = stack[stack.size() - 3].toTensor(), bias = stack[stack.size() - 2].toTensor();
  const at::Scalar factor = stack.back().toScalar();
  const auto plain = [](const at::Tensor& t) {
    return t.defined() && !t.is_inference() && is_plain(t) && t.is_contiguous();
  };
  if (!plain(to) || !plain(bias) || to.scalar_type() != at::kBFloat16 || bias.scalar_type() != at::kFloat) return false;
  if (bias.dim() != 1 || to.dim() < 2 || to.size(-1) != bias.size(0) || to.numel() == 0 || to.is_view()) return false;
  if (!factor.isIntegral(false) || factor.toLong() != 1) return false;
  if (at::GradMode::is_enabled()) {
    if (to.is_leaf() && to.requires_grad()) return false;  // which autograd refuses
    added_bias::apply(to, bias);
  } else {
    add_to_rows(to, bias);
    to.unsafeGetTensorImpl()->bump_version();
  }
  return replace_arguments(stack, 3, to);
}

}  // namespace comp::libtorch::detail
