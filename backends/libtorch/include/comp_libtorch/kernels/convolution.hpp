// SPDX-License-Identifier: Apache-2.0
// Convolutions of small images as products of matrices. oneDNN's convolutions go along rows of the image, and if a row
// has 2 or 4 pixels most of their time is lost: at 2 x 2 pixels and 512 channels a product of matrices takes a
// sixteenth of the time for the weight's gradient, and a sixth for the others. Larger images are faster by oneDNN, so
// this is a kernel that has to be measured (executor_tuning.hpp).
// Each of the three products of a convolution gathers the pixels under the filter in rows, and multiplies once. Sums
// are FP32 and are rounded once, as oneDNN's are, in another order.
// Source: Chellapilla, Puri and Simard 2006 (im2col).
#pragma once

#include <ATen/core/stack.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <comp_libtorch/kernels/kernel.hpp>
#include <comp_libtorch/support/parallel.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>

namespace comp::libtorch::detail {

/// The products of a convolution, as bits of kernel_parts.
enum convolution_part : kernel_parts { forward_product = 1, input_gradient = 2, weight_gradient = 4 };

/// How a filter goes over an image.
struct filter_steps {
  std::int64_t rows = 1, columns = 1;  // of the filter
  std::int64_t stride_y = 1, stride_x = 1;
  std::int64_t pad_y = 0, pad_x = 0;  // pixels of zeros before the image's first

  /// Returns: for the gradient of the input, how the turned filter goes over the gradient of the output. Requires:
  /// strides of 1.
  filter_steps turned() const { return {rows, columns, 1, 1, rows - 1 - pad_y, columns - 1 - pad_x}; }
};

/// Returns: of how many 16-bit halves a number consists. Copies go by halves, so that they serve each format.
inline std::int64_t halves_of(const at::Tensor& numbers) {
  return static_cast<std::int64_t>(numbers.element_size() / sizeof(std::uint16_t));
}

/// Returns: for each pixel of an output of `height` x `width` the pixels of `image` (N,C,H,W) under the filter, as a
/// matrix of N*height*width rows of rows*columns*C numbers. Requires: `image` lies channels-last, in 16 or 32 bits.
inline at::Tensor gathered(const at::Tensor& image, const filter_steps& filter, std::int64_t height,
                           std::int64_t width) {
  const std::int64_t images = image.size(0), in_y = image.size(2), in_x = image.size(3);
  const auto [rows, columns, stride_y, stride_x, pad_y, pad_x] = filter;
  at::Tensor matrix = at::empty({images * height * width, rows * columns * image.size(1)}, image.options());
  const std::int64_t channels = image.size(1) * halves_of(image), taps = rows * columns * channels;
  const auto* from = static_cast<const std::uint16_t*>(image.const_data_ptr());
  auto* to = static_cast<std::uint16_t*>(matrix.mutable_data_ptr());
  in_parallel(images * height, std::max<std::int64_t>(1, 65536 / (width * taps)), [=](auto first, auto last) {
    for (std::int64_t line = first; line < last; ++line) {
      const std::int64_t n = line / height, top = line % height * stride_y - pad_y;
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t left = x * stride_x - pad_x;
        const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, columns);  // columns of the filter on the image
        const std::int64_t end = std::clamp<std::int64_t>(in_x - left, begin, columns);
        std::uint16_t* cell = to + (line * width + x) * taps;
        for (std::int64_t row = 0; row < rows; ++row, cell += columns * channels) {
          const std::int64_t y = top + row;
          const bool outside = y < 0 || y >= in_y || begin >= end;
          const std::int64_t before = outside ? columns : begin, inside = outside ? 0 : end - begin;
          std::fill_n(cell, before * channels, std::uint16_t{0});
          if (outside) continue;
          std::memcpy(cell + before * channels, from + ((n * in_y + y) * in_x + left + begin) * channels,
                      static_cast<std::size_t>(inside * channels) * sizeof(std::uint16_t));
          std::fill_n(cell + end * channels, (columns - end) * channels, std::uint16_t{0});
        }
      }
    }
  });
  return matrix;
}

/// Returns: the filters (O,C,rows,columns) turned by half a circle, as a matrix of rows*columns*O rows of C numbers.
/// Requires: `weight` lies channels-last, in 16 or 32 bits.
inline at::Tensor turned_filters(const at::Tensor& weight) {
  const std::int64_t outs = weight.size(0), taps = weight.size(2) * weight.size(3);
  at::Tensor matrix = at::empty({taps * outs, weight.size(1)}, weight.options());
  const std::int64_t channels = weight.size(1) * halves_of(weight);
  const auto* from = static_cast<const std::uint16_t*>(weight.const_data_ptr());
  auto* to = static_cast<std::uint16_t*>(matrix.mutable_data_ptr());
  in_parallel(taps * outs, std::max<std::int64_t>(1, 65536 / channels), [=](auto first, auto last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t tap = i / outs, out = i % outs;
      std::memcpy(to + i * channels, from + (out * taps + taps - 1 - tap) * channels,
                  static_cast<std::size_t>(channels) * sizeof(std::uint16_t));
    }
  });
  return matrix;
}

/// Returns: `tensor` (N,C,H,W), which lies channels-last, as a matrix of N*H*W rows of C numbers.
inline at::Tensor pixels(const at::Tensor& tensor) { return tensor.permute({0, 2, 3, 1}).view({-1, tensor.size(1)}); }

/// Returns: a matrix of pixels as the (N,C,H,W) tensor that it is.
inline at::Tensor as_images(const at::Tensor& matrix, std::int64_t height, std::int64_t width) {
  return matrix.view({-1, height, width, matrix.size(1)}).permute({0, 3, 1, 2});
}

/// A convolution some of whose products are products of matrices; ATen computes the others.
struct convolution_of_matrices : torch::autograd::Function<convolution_of_matrices> {
  static at::Tensor forward(torch::autograd::AutogradContext* kept, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                            std::int64_t parts) {
    const at::AutoDispatchBelowADInplaceOrView plain;  // else the result is a view, which a ReLU may not write
    kept->save_for_backward({input, weight});
    kept->saved_data["stride"] = stride;
    kept->saved_data["padding"] = padding;
    kept->saved_data["parts"] = parts;
    kept->saved_data["bias"] = bias.has_value() && bias->defined();
    if ((parts & forward_product) == 0)
      return at::convolution(input, weight, bias, stride, padding, {1, 1}, false, {0, 0}, 1);
    const filter_steps filter = steps(weight, stride, padding);
    const std::int64_t height = (input.size(2) + 2 * filter.pad_y - filter.rows) / filter.stride_y + 1;
    const std::int64_t width = (input.size(3) + 2 * filter.pad_x - filter.columns) / filter.stride_x + 1;
    const at::Tensor rows = gathered(input, filter, height, width), filters = pixels(weight).view({weight.size(0), -1});
    const bool adds = bias.has_value() && bias->defined();
    return as_images(adds ? at::addmm(*bias, rows, filters.t()) : at::mm(rows, filters.t()), height, width);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* kept,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = kept->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const auto stride = kept->saved_data["stride"].toIntVector(), padding = kept->saved_data["padding"].toIntVector();
    const std::array output_mask{kept->needs_input_grad(0), kept->needs_input_grad(1),
                                 kept->saved_data["bias"].toBool() && kept->needs_input_grad(2)};
    // ATen's own backward can be differentiated again, and takes many gradients at once
    const bool by_aten = at::GradMode::is_enabled() || !only_autograd_sees(*gradients[0].unsafeGetTensorImpl());
    const std::int64_t parts = by_aten ? 0 : kept->saved_data["parts"].toInt();
    const bool input_here = output_mask[0] && (parts & input_gradient) != 0;
    const bool weight_here = output_mask[1] && (parts & weight_gradient) != 0;
    const bool bias_here = output_mask[2] && weight_here;  // ATen has it with the weight's gradient only
    const at::Tensor gradient = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    auto [of_input, of_weight, of_bias] = at::convolution_backward(
        gradient, input, weight, weight.size(0), stride, padding, {1, 1}, false, {0, 0}, 1,
        {output_mask[0] && !input_here, output_mask[1] && !weight_here, output_mask[2] && !bias_here});
    const filter_steps filter = steps(weight, stride, padding);
    if (input_here) {
      const at::Tensor rows = gathered(gradient, filter.turned(), input.size(2), input.size(3));
      of_input = as_images(at::mm(rows, turned_filters(weight)), input.size(2), input.size(3));
    }
    if (weight_here) {
      const at::Tensor rows = gathered(input, filter, gradient.size(2), gradient.size(3));
      const at::Tensor product = at::mm(pixels(gradient).t(), rows);
      of_weight = product.view({weight.size(0), filter.rows, filter.columns, -1}).permute({0, 3, 1, 2});
    }
    if (bias_here) of_bias = pixels(gradient).sum(0);
    return {of_input, of_weight, of_bias, {}, {}, {}};
  }

 private:
  static filter_steps steps(const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding) {
    return {weight.size(2), weight.size(3), stride[0], stride[1], padding[0], padding[1]};
  }
};

/// Returns: the numbers of the larger matrix that a convolution of tensors of these shapes gathers.
inline std::int64_t most_gathered(at::IntArrayRef input, at::IntArrayRef weight, at::IntArrayRef output) {
  const std::int64_t taps = weight[2] * weight[3];
  return taps * input[0] * std::max(input[1] * output[2] * output[3], output[1] * input[2] * input[3]);
}
inline constexpr std::int64_t most_numbers = std::int64_t{16} << 20;  // of a matrix: larger images are faster by oneDNN

inline bool fits_convolution(const op_info& recorded, at::ScalarType /*format*/) {
  const auto shape = [](const std::vector<tensor_info>& of, std::size_t i) -> at::IntArrayRef {
    return of.at(i).shape;
  };
  if (recorded.inputs.size() < 2 || recorded.outputs.empty()) return false;
  const auto input = shape(recorded.inputs, 0), weight = shape(recorded.inputs, 1), output = shape(recorded.outputs, 0);
  return input.size() == 4 && weight.size() == 4 && output.size() == 4 && weight[1] == input[1] &&
         most_gathered(input, weight, output) <= most_numbers;
}

/// Serves convolutions of two dimensions without groups and dilation, whose input and weight lie channels-last.
inline bool run_convolution(torch::jit::Stack& stack, std::size_t arguments, kernel_parts parts,
                            const op_info& recorded) {
  const auto argument = [&](std::size_t i) -> const at::IValue& { return stack[stack.size() - arguments + i]; };
  const bool general = arguments == 9;  // aten::convolution, not aten::conv2d
  if (argument(arguments - 1).toInt() != 1 || (general && argument(6).toBool())) return false;
  const at::Tensor &input = argument(0).toTensor(), &weight = argument(1).toTensor();
  const auto bias = argument(2).toOptional<at::Tensor>();
  const auto lies_as_input = [&](const at::Tensor& t) {
    return t.defined() && t.dim() == 4 && t.numel() > 0 && t.scalar_type() == input.scalar_type() && is_plain(t) &&
           t.is_contiguous(at::MemoryFormat::ChannelsLast);
  };
  if (!lies_as_recorded(input, recorded) || !lies_as_input(weight)) return false;
  if (input.element_size() != 2 && input.scalar_type() != at::kFloat) return false;
  if (bias && bias->defined() && (bias->scalar_type() != input.scalar_type() || !is_plain(*bias))) return false;
  const auto stride = argument(3).toIntVector(), padding = argument(4).toIntVector(),
             dilation = argument(5).toIntVector();
  if (stride.size() != 2 || padding.size() != 2 || dilation != std::vector<std::int64_t>{1, 1}) return false;
  const std::int64_t rows = weight.size(2), columns = weight.size(3);
  const std::int64_t height = (input.size(2) + 2 * padding[0] - rows) / stride[0] + 1;
  const std::int64_t width = (input.size(3) + 2 * padding[1] - columns) / stride[1] + 1;
  if (height < 1 || width < 1 || weight.size(1) != input.size(1)) return false;
  const std::array output{input.size(0), weight.size(0), height, width};
  if (most_gathered(input.sizes(), weight.sizes(), output) > most_numbers) return false;
  if (stride != std::vector<std::int64_t>{1, 1} || padding[0] >= rows || padding[1] >= columns)
    parts &= ~input_gradient;
  if (parts == 0) return false;
  return replace_arguments(stack, arguments,
                           convolution_of_matrices::apply(input, weight, bias, stride, padding, std::int64_t{parts}));
}

inline constexpr std::array<kernel_part, 3> convolution_parts{{{"forward", kernel_phase::forward},
                                                               {"input gradient", kernel_phase::backward},
                                                               {"weight gradient", kernel_phase::backward}}};
inline constexpr kernel convolution_kernel{
    .name = "matrices",
    .parts = convolution_parts,
    .wants_channels_last = true,
    .serves_fp32 = true,
    .serves = [](const op_traits& op) { return op.kind == "aten::conv2d" || op.kind == "aten::convolution"; },
    .fits = fits_convolution,
    .run = run_convolution};

}  // namespace comp::libtorch::detail
