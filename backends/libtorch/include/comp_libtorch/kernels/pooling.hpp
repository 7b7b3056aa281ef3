// SPDX-License-Identifier: Apache-2.0
// Max pooling of channels-last images in BF16. ATen keeps the place of each maximum in 8 bytes, four times as many as
// the maximum itself has, and its backward fills the gradient with zeros and adds to it number by number. Here a place
// is a byte: which pixel of the window it was. The backward asks for each pixel of the image which windows chose it.
// Results and gradients have ATen's bits: the first of equal maxima counts, NaN is larger than all numbers, and the
// gradients of overlapping windows are added in ATen's order and rounded to BF16 each time.
// Source: ATen/native/cpu/MaxPoolKernel.cpp; PyTorch 2.11.0.
#pragma once

#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <comp_libtorch/kernels/kernel.hpp>
#include <comp_libtorch/kernels/pooling_loops.hpp>
#include <comp_libtorch/support/parallel.hpp>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace comp::libtorch::detail {

/// Max pooling that keeps bytes for places.
struct max_pooling : torch::autograd::Function<max_pooling> {
  static at::Tensor forward(torch::autograd::AutogradContext* kept, const at::Tensor& input, at::IntArrayRef size,
                            at::IntArrayRef stride, at::IntArrayRef padding) {
    const at::AutoDispatchBelowADInplaceOrView plain;  // else the result is a view, which a ReLU may not write
    const window_grid grid = grid_of(input, size, stride, padding);
    const std::array shape{input.size(0), grid.channels, grid.y.windows(), grid.x.windows()};
    const at::Tensor result = at::empty(shape, input.options(), at::MemoryFormat::ChannelsLast);
    const at::Tensor places = at::empty(shape, input.options().dtype(at::kByte), at::MemoryFormat::ChannelsLast);
    const auto* from = static_cast<const std::uint16_t*>(input.const_data_ptr());
    auto* to = static_cast<std::uint16_t*>(result.mutable_data_ptr());
    auto* chosen = static_cast<std::uint8_t*>(places.mutable_data_ptr());
    by_lines(
        shape[0] * shape[2], shape[1] * shape[3], [=](std::int64_t line, auto) __attribute__((always_inline)) {
          pool_line(grid, line, from, to, chosen);
        });
    kept->save_for_backward({input, places});
    kept->saved_data["size"] = size;
    kept->saved_data["stride"] = stride;
    kept->saved_data["padding"] = padding;
    return result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* kept,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = kept->get_saved_variables();
    const at::Tensor &input = saved[0], &places = saved[1];
    const auto size = kept->saved_data["size"].toIntVector(), stride = kept->saved_data["stride"].toIntVector(),
               padding = kept->saved_data["padding"].toIntVector();
    if (at::GradMode::is_enabled() || !only_autograd_sees(*gradients[0].unsafeGetTensorImpl())) {
      // ATen's own backward can be differentiated again
      const auto indices = std::get<1>(at::max_pool2d_with_indices(input.detach(), size, stride, padding));
      return {at::max_pool2d_with_indices_backward(gradients[0], input, size, stride, padding, {1, 1}, false, indices),
              {},
              {},
              {}};
    }
    const window_grid grid = grid_of(input, size, stride, padding);
    const at::Tensor gradient = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor result = at::empty(input.sizes(), input.options(), at::MemoryFormat::ChannelsLast);
    const auto* from = static_cast<const std::uint16_t*>(gradient.const_data_ptr());
    const auto* chosen = static_cast<const std::uint8_t*>(places.const_data_ptr());
    auto* to = static_cast<std::uint16_t*>(result.mutable_data_ptr());
    by_lines(
        input.size(0) * grid.y.pixels,
        grid.channels * grid.x.pixels, [=](std::int64_t line, auto lanes) __attribute__((always_inline)) {
          gather_line<lanes()>(grid, line, from, chosen, to);
        });
    return {result, {}, {}, {}};
  }

 private:
  static window_grid grid_of(const at::Tensor& input, at::IntArrayRef size, at::IntArrayRef stride,
                             at::IntArrayRef padding) {
    return {input.size(1),
            {input.size(2), size[0], stride[0], padding[0]},
            {input.size(3), size[1], stride[1], padding[1]}};
  }
  static void by_lines(std::int64_t lines, std::int64_t numbers, const auto& body) {
    in_parallel(lines, std::max<std::int64_t>(1, 32768 / numbers), [&](auto first, auto last) {
      run_widest([&](auto lanes) __attribute__((always_inline)) {
        for (std::int64_t line = first; line < last; ++line) body(line, lanes);
      });
    });
  }
};

/// Serves pooling of channels-last images in BF16 that have a multiple of 16 channels, without dilation and ceil mode.
inline bool run_pooling(torch::jit::Stack& stack, std::size_t arguments, kernel_parts /*parts*/,
                        const op_info& recorded) {
  const auto argument = [&](std::size_t i) -> const at::IValue& { return stack[stack.size() - arguments + i]; };
  const at::Tensor& input = argument(0).toTensor();
  if (!lies_as_recorded(input, recorded) || input.scalar_type() != at::kBFloat16 || input.size(1) % 16 != 0)
    return false;
  const auto pair = [&](std::size_t i) {
    auto of_axes = argument(i).toIntVector();
    if (of_axes.size() == 1) of_axes.push_back(of_axes.front());
    return of_axes;
  };
  const auto size = pair(1), padding = pair(3), dilation = pair(4);
  const auto stride = argument(2).toIntVector().empty() ? size : pair(2);
  if (dilation != std::vector<std::int64_t>{1, 1} || argument(5).toBool()) return false;
  if (size.size() != 2 || stride.size() != 2 || padding.size() != 2) return false;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const bool valid = size[axis] > 0 && stride[axis] > 0 && padding[axis] >= 0 && padding[axis] <= size[axis] / 2 &&
                       input.size(2 + static_cast<std::int64_t>(axis)) + 2 * padding[axis] >= size[axis];
    if (!valid) return false;
  }
  if (size[0] * size[1] > window_grid::most_pixels) return false;
  return replace_arguments(stack, arguments, max_pooling::apply(input, size, stride, padding));
}

inline constexpr std::array<kernel_part, 1> pooling_parts{{{"forward and backward", kernel_phase::both}}};
inline constexpr kernel pooling_kernel{.name = "byte places",
                                       .parts = pooling_parts,
                                       .wants_channels_last = true,
                                       .serves_fp32 = false,
                                       .serves = [](const op_traits& op) { return op.kind == "aten::max_pool2d"; },
                                       .fits = has_whole_vectors,
                                       .run = run_pooling};

}  // namespace comp::libtorch::detail
