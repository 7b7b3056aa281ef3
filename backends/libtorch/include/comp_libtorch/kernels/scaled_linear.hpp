// SPDX-License-Identifier: Apache-2.0
// Linear layers whose three products have precisions of their own. In a format below 16 bits a product is emulated: it
// rounds its two operands to the format, scales included, as a GPU's would, and multiplies them in FP32. So a training
// has the losses that the format gives, but not its speed. Its result is BF16; gradients have the format of what they
// are for.
// Not here: the formats (core/scaled_formats.hpp).
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <comp/core/error.hpp>
#include <comp/core/product.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/hook/tf32.hpp>
#include <comp_libtorch/kernels/quantize.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace comp::libtorch::detail {

/// Which arguments of an operator are a linear layer's: linear(x, w, b) with w of shape (N, K), mm(x, w),
/// matmul(x, w) and addmm(b, x, w, beta, alpha) with w of shape (K, N).
struct linear_arguments {
  std::size_t input, weight;
  std::optional<std::size_t> bias;
  bool transposed;
};
inline std::optional<linear_arguments> linear_arguments_of(const op_traits& known) {
  if (known.kind == "aten::linear") return linear_arguments{0, 1, 2, false};
  if (known.kind == "aten::addmm") return linear_arguments{1, 2, 0, true};
  if (known.kind == "aten::mm" || known.kind == "aten::matmul") return linear_arguments{0, 1, {}, true};
  return std::nullopt;
}

/// Returns: whether an operator in `p` gets its argument as it is: a layer whose products need rounding rounds its
/// weight for each of them, and below 16 bits adds the bias in FP32.
inline bool takes_as_is(const op_traits& known, const product_precisions& p, std::size_t argument) {
  const auto linear = p.need_rounding() ? linear_arguments_of(known) : std::nullopt;
  return linear && argument != linear->input;
}

/// One product of a layer: rows of `a` times rows of `b`, both read in the precision of the product. Returns: FP32
/// where that is below 16 bits.
struct layer_product {
  precision in;
  comp::product of;
  at::Tensor operator()(const at::Tensor& a, operand first, const at::Tensor& b, operand second,
                        const std::optional<at::Tensor>& bias = {}) const {
    const at::ScalarType type = is_scaled(in) ? at::kFloat : scalar_type(in);
    std::optional<at::NoTF32Guard> whole_fp32;
    std::optional<tf32_guard> tf32;
    if (is_scaled(in)) whole_fp32.emplace();
    if (in == precision::tf32) tf32.emplace();
    return at::linear(read(a, first), read(b, second), bias ? bias->to(type) : at::Tensor{});
  }

 private:
  at::Tensor read(const at::Tensor& matrix, operand which) const {
    if (!is_scaled(in)) return matrix.to(scalar_type(in));
    return quantizer{format_of(in, of, which)}(matrix.to(at::kFloat).contiguous());
  }
};

/// y = x w' + b. x is (...,K) in the format of the forward's results, w is (N,K).
class scaled_linear : public torch::autograd::Function<scaled_linear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b, const product_precisions& in) {
    context->save_for_backward({w.requires_grad() ? x : at::Tensor{}, w});
    context->saved_data["forward"] = static_cast<std::int64_t>(in.forward);
    context->saved_data["input_gradient"] = static_cast<std::int64_t>(in.input_gradient);
    context->saved_data["weight_gradient"] = static_cast<std::int64_t>(in.weight_gradient);
    context->saved_data["bias"] = b ? static_cast<std::int64_t>(b->scalar_type()) : std::int64_t{-1};
    const layer_product multiply{in.forward, comp::product::forward};
    const at::Tensor y = multiply(is_scaled(in.forward) ? rows(x) : x, operand::input, w, operand::weight, b);
    auto shape = x.sizes().vec();
    shape.back() = w.size(0);
    return at::_unsafe_view(y.to(scalar_type(in.forward)),
                            shape);  // no view for autograd, because a model may write it in place
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto in = [&](const char* of) { return static_cast<precision>(context->saved_data[of].toInt()); };
    const layer_product of_input{in("input_gradient"), comp::product::input_gradient};
    const layer_product of_weight{in("weight_gradient"), comp::product::weight_gradient};
    require<error>(!at::GradMode::is_enabled(),
                   "a gradient of a gradient is wanted of a linear layer in {}, with gradients in {} and {} "
                   "(create_graph=True; rounding has none): give the layer and its gradients bf16",
                   name(in("forward")), name(of_input.in), name(of_weight.in));
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], dy = rows(gradients[0]);
    const std::int64_t bias = context->saved_data["bias"].toInt();
    torch::autograd::variable_list made(4);
    if (context->needs_input_grad(0)) {
      auto shape = gradients[0].sizes().vec();
      shape.back() = w.size(1);
      const at::ScalarType type = scalar_type(of_input.in);
      const at::Tensor dx = of_input(dy.to(type), operand::gradient, w.t(), operand::weight).to(type);
      made[0] = dx.to(dy.scalar_type()).view(shape);
    }
    const at::Tensor read = dy.to(scalar_type(of_weight.in));
    if (context->needs_input_grad(1)) {
      const at::Tensor with = rows(x).to(read.scalar_type());
      made[1] = of_weight(read.t(), operand::gradient, with.t(), operand::input).to(w.scalar_type());
    }
    if (bias >= 0 && context->needs_input_grad(2)) {
      const at::Tensor summed = is_scaled(of_weight.in) ? read.to(at::kFloat) : read;
      made[2] = summed.sum(0).to(static_cast<at::ScalarType>(bias));
    }
    return made;
  }

 private:
  static at::Tensor rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }
};

/// Runs a linear layer whose arguments are on the stack, each of its products in its precision. Returns: false, with
/// the stack as it was, for what is no linear layer.
inline bool run_scaled(const op_traits& known, torch::jit::Stack& stack, const product_precisions& in) {
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
  at::Tensor y = scaled_linear::apply(x.to(scalar_type(in.forward)), w, bias, in);
  torch::jit::drop(stack, arguments);
  torch::jit::push(stack, std::move(y));
  return true;
}

}  // namespace comp::libtorch::detail
