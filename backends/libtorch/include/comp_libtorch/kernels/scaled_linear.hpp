// SPDX-License-Identifier: Apache-2.0
// Linear layers in formats below 16 bits, emulated: each of the three products rounds its two operands to the format,
// scales included, as a GPU's would, and multiplies them in FP32. So a training has the losses that the format gives,
// but not its speed. Results are BF16; gradients have the format of what they are for.
// Not here: the formats (core/scaled_formats.hpp).
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <comp/core/error.hpp>
#include <comp/core/product.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/kernels/quantize.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace comp::libtorch::detail {

/// Which arguments of an operator are a linear layer's: linear(x, w, b) with w of shape (N, K), mm(x, w) and
/// addmm(b, x, w, beta, alpha) with w of shape (K, N).
struct linear_arguments {
  std::size_t input, weight;
  std::optional<std::size_t> bias;
  bool transposed;
};
inline std::optional<linear_arguments> linear_arguments_of(const op_traits& known) {
  if (known.kind == "aten::linear") return linear_arguments{0, 1, 2, false};
  if (known.kind == "aten::addmm") return linear_arguments{1, 2, 0, true};
  if (known.kind == "aten::mm") return linear_arguments{0, 1, {}, true};
  return std::nullopt;
}

/// Returns: whether an operator in `p` gets its argument as it is: a linear layer below 16 bits rounds its weight
/// itself, and adds the bias in FP32.
inline bool takes_as_is(const op_traits& known, precision p, std::size_t argument) {
  const auto linear = is_scaled(p) ? linear_arguments_of(known) : std::nullopt;
  return linear && argument != linear->input;
}

/// Rounds the operands of one product.
struct operand_rounder {
  precision format;
  comp::product of;
  at::Tensor operator()(const at::Tensor& matrix, operand which) const {
    return quantizer{format_of(format, of, which)}(matrix.to(at::kFloat).contiguous());
  }
};

/// y = x w' + b. x is (...,K) in BF16, w is (N,K).
class scaled_linear : public torch::autograd::Function<scaled_linear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b, std::int64_t format) {
    context->save_for_backward({w.requires_grad() ? x : at::Tensor{}, w});
    context->saved_data["format"] = format;
    context->saved_data["bias"] = b ? static_cast<std::int64_t>(b->scalar_type()) : std::int64_t{-1};
    const at::NoTF32Guard whole_fp32;
    const operand_rounder round{static_cast<precision>(format), comp::product::forward};
    const at::Tensor y =
        at::linear(round(rows(x), operand::input), round(w, operand::weight), b ? b->to(at::kFloat) : at::Tensor{});
    auto shape = x.sizes().vec();
    shape.back() = w.size(0);
    return y.view(shape).to(at::kBFloat16);  // no view, because a model may write it in place
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto format = static_cast<precision>(context->saved_data["format"].toInt());
    require<error>(!at::GradMode::is_enabled(),
                   "a gradient of a gradient is wanted of a linear layer in {} (create_graph=True; rounding has none): "
                   "give the layer bf16",
                   name(format));
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], dy = rows(gradients[0]);
    const std::int64_t bias = context->saved_data["bias"].toInt();
    const at::NoTF32Guard whole_fp32;
    torch::autograd::variable_list made(4);
    if (context->needs_input_grad(0)) {
      const operand_rounder round{format, comp::product::input_gradient};
      auto shape = gradients[0].sizes().vec();
      shape.back() = w.size(1);
      made[0] = at::linear(round(dy, operand::gradient), round(w.t(), operand::weight)).to(at::kBFloat16).view(shape);
    }
    if (context->needs_input_grad(1)) {
      const operand_rounder round{format, comp::product::weight_gradient};
      made[1] = at::linear(round(dy.t(), operand::gradient), round(rows(x).t(), operand::input)).to(w.scalar_type());
    }
    if (bias >= 0 && context->needs_input_grad(2)) made[2] = dy.sum(0).to(static_cast<at::ScalarType>(bias));
    return made;
  }

 private:
  static at::Tensor rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).to(at::kFloat); }
};

/// Runs a linear layer whose arguments are on the stack in a format below 16 bits. Returns: false, with the stack as it
/// was, for what is no linear layer.
inline bool run_scaled(const op_traits& known, torch::jit::Stack& stack, precision format) {
  const auto at = linear_arguments_of(known);
  if (!at) return false;
  const std::size_t arguments = known.arguments.size(), first = stack.size() - arguments;
  const auto tensor = [&](std::size_t i) {
    const at::IValue& value = stack[first + i];
    return value.isTensor() ? value.toTensor() : at::Tensor{};
  };
  at::Tensor x = tensor(at->input), w = tensor(at->weight), b = at->bias ? tensor(*at->bias) : at::Tensor{};
  const auto is_dense = [](const at::Tensor& t) {
    return t.defined() && t.layout() == at::kStrided && is_plannable(t.scalar_type());
  };
  if (!is_dense(x) || !is_dense(w) || w.dim() != 2 || x.dim() == 0 || x.size(-1) == 0) return false;
  if (known.kind == "aten::addmm") {
    if (b.dim() != 1) return false;
    const at::Scalar beta = stack[first + 3].toScalar(), alpha = stack[first + 4].toScalar();
    if (alpha.toDouble() != 1) x = x * alpha;
    if (beta.toDouble() != 1) b = b * beta;
  }
  if (at->transposed) w = w.t();
  const auto bias = b.defined() ? std::optional{b} : std::nullopt;
  at::Tensor y = scaled_linear::apply(x.to(at::kBFloat16), w, bias, static_cast<std::int64_t>(format));
  torch::jit::drop(stack, arguments);
  torch::jit::push(stack, std::move(y));
  return true;
}

}  // namespace comp::libtorch::detail
