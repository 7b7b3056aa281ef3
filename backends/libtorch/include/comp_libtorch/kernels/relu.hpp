// SPDX-License-Identifier: Apache-2.0
// ReLU of BF16 numbers by their bits. ATen widens each number to FP32 and rounds the result, which takes four times as
// long as a comparison of integers. Values are the same, so this is no choice; a zero may have another sign than
// ATen's.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <comp_libtorch/kernels/kernel.hpp>
#include <comp_libtorch/kernels/vectors.hpp>
#include <comp_libtorch/support/parallel.hpp>
#include <cstdint>

namespace comp::libtorch::detail {

/// Calls `body(i, count)` for vectors of numbers from `i` on, the last of which may be shorter: `count` is then less
/// than `lanes`.
void by_vectors(std::int64_t numbers, const auto& body) {
  in_parallel(numbers, 32768, [&](std::int64_t first, std::int64_t last) {
    run_widest([&](auto half_lanes) __attribute__((always_inline)) {
      constexpr int lanes = 2 * half_lanes;  // of 16 bits
      std::int64_t i = first;
      for (; i + lanes <= last; i += lanes) body(std::integral_constant<int, lanes>{}, i);
      for (; i < last; ++i) body(std::integral_constant<int, 1>{}, i);
    });
  });
}

/// Writes max(from, 0); NaN stays NaN. Read as integers, negative numbers are -32768 (-0) to -128 (-infinity), and a
/// NaN with a sign is above.
inline void rectify(const std::uint16_t* from, std::uint16_t* to, std::int64_t numbers) {
  by_vectors(
      numbers, [=](auto lanes, std::int64_t i) __attribute__((always_inline)) {
        typename vectors<lanes>::shorts x;
        load(from + i, x);
        x &= x > -128;
        store(x, to + i);
      });
}
/// Writes to[i] = result[i] != 0 ? gradient[i] : 0.
inline void rectify_backward(const std::uint16_t* gradient, const std::uint16_t* result, std::uint16_t* to,
                             std::int64_t numbers) {
  by_vectors(
      numbers, [=](auto lanes, std::int64_t i) __attribute__((always_inline)) {
        typename vectors<lanes>::shorts g, y;
        load(gradient + i, g);
        load(result + i, y);
        g &= y != 0;
        store(g, to + i);
      });
}

struct rectified : torch::autograd::Function<rectified> {
  static at::Tensor forward(torch::autograd::AutogradContext* kept, const at::Tensor& input, bool in_place) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const at::Tensor result = in_place ? input : at::empty_like(input);
    if (in_place) kept->mark_dirty({input});
    rectify(static_cast<const std::uint16_t*>(input.const_data_ptr()),
            static_cast<std::uint16_t*>(result.mutable_data_ptr()), input.numel());
    kept->save_for_backward({result});
    return result;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* kept,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor result = kept->get_saved_variables()[0], &gradient = gradients[0];
    if (at::GradMode::is_enabled() || !is_plain(gradient) || gradient.scalar_type() != at::kBFloat16 ||
        gradient.strides() != result.strides())
      return {at::threshold_backward(gradient, result, 0), {}};
    const at::Tensor to = at::empty_like(gradient);
    rectify_backward(static_cast<const std::uint16_t*>(gradient.const_data_ptr()),
                     static_cast<const std::uint16_t*>(result.const_data_ptr()),
                     static_cast<std::uint16_t*>(to.mutable_data_ptr()), gradient.numel());
    return {to, {}};
  }
};

/// Runs aten::relu, or aten::relu_ if `in_place`, whose argument is on the stack. Returns: false, with the stack as
/// it was, for what is not BF16, and for few numbers, for which ATen's call takes less time.
template <bool in_place>
bool run_relu(torch::jit::Stack& stack) {
  const at::Tensor input = stack.back().toTensor();
  if (!input.defined() || input.scalar_type() != at::kBFloat16 || !is_plain(input) || input.is_inference() ||
      !input.is_non_overlapping_and_dense() || input.numel() < 32768)
    return false;
  if (in_place && (input.is_view() || (at::GradMode::is_enabled() && input.is_leaf() && input.requires_grad())))
    return false;  // a view's base would have to know, and autograd refuses leaves
  return replace_arguments(stack, 1, rectified::apply(input, in_place));
}

}  // namespace comp::libtorch::detail
