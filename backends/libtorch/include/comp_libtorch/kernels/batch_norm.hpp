// SPDX-License-Identifier: Apache-2.0
// Batch norm in training mode, of channels-last images in BF16. ATen reads the image twice for mean and variance; here
// one pass takes both, of differences from an estimate of the mean, so that no digits are lost. Each thread goes over
// its pixels in tiles that stay in the cache, and keeps a few channels' sums in registers meanwhile.
// Sums are FP32 in a tile and FP64 from there on. Running statistics are updated as by ATen.
// Source: ATen/native/cpu/batch_norm_kernel.cpp; PyTorch 2.11.0.
#pragma once

#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <comp_libtorch/kernels/batch_norm_loops.hpp>
#include <comp_libtorch/kernels/kernel.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace comp::libtorch::detail {

enum batch_norm_part : kernel_parts { normalize = 1, normalize_backward = 2 };

/// The sums of a pass over all pixels, of two values for each channel.
template <bool with_gradient>
std::vector<double> channel_sums(const pixel_rows& pixels, const std::uint16_t* x, const std::uint16_t* g,
                                 const float* center) {
  const std::int64_t size = 2 * pixels.channels;
  std::vector<double> sums(static_cast<std::size_t>(size * pixels.parts));
  pixels.for_each_tile(
      false, [&](std::int64_t part, std::int64_t first, std::int64_t rows, auto lanes) __attribute__((always_inline)) {
        add_tile<lanes(), with_gradient>(x + first, with_gradient ? g + first : nullptr, rows, pixels.channels, center,
                                         sums.data() + part * size);
      });
  for (std::int64_t i = size; i < size * pixels.parts; ++i)
    sums[static_cast<std::size_t>(i % size)] += sums[static_cast<std::size_t>(i)];
  return sums;
}

/// Returns: x * slopes + offsets in BF16; with gradients g to that g * g_slopes.
template <bool with_gradient>
at::Tensor scaled(const at::Tensor& images, const std::uint16_t* g, const std::vector<float>& slopes,
                  const std::vector<float>& offsets, const std::vector<float>& g_slopes) {
  const pixel_rows pixels{images};
  const at::Tensor result = at::empty(images.sizes(), images.options(), at::MemoryFormat::ChannelsLast);
  const auto* x = static_cast<const std::uint16_t*>(images.const_data_ptr());
  auto* to = static_cast<std::uint16_t*>(result.mutable_data_ptr());
  pixels.for_each_tile(
      true, [&](std::int64_t, std::int64_t first, std::int64_t rows, auto lanes) __attribute__((always_inline)) {
        scale_tile<lanes(), with_gradient>(x + first, with_gradient ? g + first : nullptr, rows, pixels.channels,
                                           slopes.data(), offsets.data(), g_slopes.data(), to + first);
      });
  return result;
}

/// Batch norm one part of which may be ATen's.
struct tiled_batch_norm : torch::autograd::Function<tiled_batch_norm> {
  static at::Tensor forward(torch::autograd::AutogradContext* kept, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
                            double momentum, double eps, std::int64_t parts) {
    const at::AutoDispatchBelowADInplaceOrView plain;  // else the result is a view, which a ReLU may not write
    at::Tensor result, mean, inverse;
    if ((parts & normalize) == 0) {
      std::tie(result, mean, inverse) =
          at::native_batch_norm(input, weight, bias, running_mean, running_var, true, momentum, eps);
    } else {
      std::tie(result, mean, inverse) = normalized(input, weight, bias, running_mean, running_var, momentum, eps);
    }
    kept->save_for_backward({input, weight.value_or(at::Tensor{}), mean, inverse});
    kept->saved_data["eps"] = eps;
    kept->saved_data["parts"] = parts;
    return result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* kept,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = kept->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const double eps = kept->saved_data["eps"].toDouble();
    const bool affine = weight.defined();
    const std::array output_mask{kept->needs_input_grad(0), affine && kept->needs_input_grad(1),
                                 affine && kept->needs_input_grad(2)};
    at::Tensor of_input, of_weight, of_bias;
    if ((kept->saved_data["parts"].toInt() & normalize_backward) == 0 || at::GradMode::is_enabled() ||
        !only_autograd_sees(*gradients[0].unsafeGetTensorImpl())) {
      // ATen's own backward can be differentiated again
      std::tie(of_input, of_weight, of_bias) =
          at::native_batch_norm_backward(gradients[0], input, weight, {}, {}, mean, inverse, true, eps, output_mask);
      return {of_input, of_weight, of_bias, {}, {}, {}, {}, {}};
    }
    const pixel_rows pixels{input};
    const auto channels = static_cast<std::size_t>(pixels.channels);
    const at::Tensor gradient = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    const auto* g = static_cast<const std::uint16_t*>(gradient.const_data_ptr());
    const float *center = values_of<float>(mean), *scale = values_of<float>(inverse);
    const auto sums = channel_sums<true>(pixels, static_cast<const std::uint16_t*>(input.const_data_ptr()), g, center);
    of_weight = at::empty_like(mean);
    of_bias = at::empty_like(mean);
    std::vector<float> slopes(channels), offsets(channels), g_slopes(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      const double sum = sums[c], product = sums[channels + c];
      of_bias.mutable_data_ptr<float>()[c] = static_cast<float>(sum);
      of_weight.mutable_data_ptr<float>()[c] = static_cast<float>(product * scale[c]);
      const double factor = double{scale[c]} * (affine ? values_of<float>(weight)[c] : 1.0F);
      const double slope = -factor * scale[c] * scale[c] * product / static_cast<double>(pixels.rows);
      g_slopes[c] = static_cast<float>(factor);
      slopes[c] = static_cast<float>(slope);
      offsets[c] = static_cast<float>(-factor * sum / static_cast<double>(pixels.rows) - slope * center[c]);
    }
    if (output_mask[0]) of_input = scaled<true>(input, g, slopes, offsets, g_slopes);
    if (!output_mask[1]) of_weight.reset();
    if (!output_mask[2]) of_bias.reset();
    return {of_input, of_weight, of_bias, {}, {}, {}, {}, {}};
  }

 private:
  static std::tuple<at::Tensor, at::Tensor, at::Tensor> normalized(const at::Tensor& input,
                                                                   const std::optional<at::Tensor>& weight,
                                                                   const std::optional<at::Tensor>& bias,
                                                                   const std::optional<at::Tensor>& running_mean,
                                                                   const std::optional<at::Tensor>& running_var,
                                                                   double momentum, double eps) {
    const pixel_rows pixels{input};
    const auto channels = static_cast<std::size_t>(pixels.channels);
    const auto* x = static_cast<const std::uint16_t*>(input.const_data_ptr());
    const auto numbers = [](const std::optional<at::Tensor>& t) {
      return t && t->defined() ? values_of<float>(*t) : nullptr;
    };
    const float *w = numbers(weight), *b = numbers(bias);
    const std::vector<float> center = estimated_means(pixels, x);
    const auto sums = channel_sums<false>(pixels, x, nullptr, center.data());
    const at::Tensor mean = at::empty({pixels.channels}, input.options().dtype(at::kFloat)),
                     inverse = at::empty_like(mean);
    std::vector<float> slopes(channels), offsets(channels);
    const auto rows = static_cast<double>(pixels.rows);
    for (std::size_t c = 0; c < channels; ++c) {
      const double shift = sums[c] / rows, exact = center[c] + shift;
      const double squares = std::max(sums[channels + c] - sums[c] * shift, 0.0);  // of differences from the mean
      const double scale = 1 / std::sqrt(squares / rows + eps), slope = scale * (w != nullptr ? w[c] : 1.0F);
      mean.mutable_data_ptr<float>()[c] = static_cast<float>(exact);
      inverse.mutable_data_ptr<float>()[c] = static_cast<float>(scale);
      slopes[c] = static_cast<float>(slope);
      offsets[c] = static_cast<float>((b != nullptr ? b[c] : 0.0F) - exact * slope);
      const auto update = [&](const std::optional<at::Tensor>& running, double now) {
        if (!running || !running->defined()) return;
        float& value = running->mutable_data_ptr<float>()[c];
        value = static_cast<float>(momentum * now + (1 - momentum) * value);
      };
      update(running_mean, exact);
      update(running_var, squares / (rows - 1));
    }
    return {scaled<false>(input, nullptr, slopes, offsets, {}), mean, inverse};
  }
};

/// Serves training mode, for channels-last images in BF16 that have a multiple of 16 channels, with weight, bias and
/// running statistics in FP32.
inline bool run_batch_norm(torch::jit::Stack& stack, std::size_t arguments, kernel_parts parts,
                           const op_info& recorded) {
  const auto argument = [&](std::size_t i) -> const at::IValue& { return stack[stack.size() - arguments + i]; };
  const at::Tensor& input = argument(0).toTensor();
  if (!lies_as_recorded(input, recorded) || input.scalar_type() != at::kBFloat16 || input.size(1) % 16 != 0)
    return false;
  if (!argument(5).toBool() || input.numel() == input.size(1)) return false;
  std::array<std::optional<at::Tensor>, 4> of_channels;  // weight, bias, running mean and variance
  for (std::size_t i = 0; i < 4; ++i) {
    of_channels[i] = argument(i + 1).toOptional<at::Tensor>();
    if (!of_channels[i] || !of_channels[i]->defined()) continue;
    const at::Tensor& t = *of_channels[i];
    if (!is_plain(t) || t.scalar_type() != at::kFloat || t.sizes() != at::IntArrayRef{input.size(1)} ||
        !t.is_contiguous() || (i >= 2 && t.requires_grad()))
      return false;
  }
  const auto& [weight, bias, running_mean, running_var] = of_channels;
  const auto given = [](const std::optional<at::Tensor>& t) { return t && t->defined(); };
  if (given(weight) != given(bias) || given(running_mean) != given(running_var)) return false;
  return replace_arguments(
      stack, arguments,
      tiled_batch_norm::apply(input, weight, bias, running_mean, running_var, argument(6).toDouble(),
                              argument(7).toDouble(), std::int64_t{parts}));
}

inline constexpr std::array<kernel_part, 2> batch_norm_parts{
    {{"forward", kernel_phase::forward}, {"backward", kernel_phase::backward}}};
inline constexpr kernel batch_norm_kernel{.name = "tiles",
                                          .parts = batch_norm_parts,
                                          .wants_channels_last = true,
                                          .serves_fp32 = false,
                                          .serves = [](const op_traits& op) { return op.kind == "aten::batch_norm"; },
                                          .fits = has_whole_vectors,
                                          .run = run_batch_norm};

}  // namespace comp::libtorch::detail
