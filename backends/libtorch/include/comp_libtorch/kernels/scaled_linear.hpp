// SPDX-License-Identifier: Apache-2.0
// Linear layers whose three products have precisions of their own. A GPU with units for FP8 multiplies in E4M3 (and
// gradients in E5M2) itself. In any other format below 16 bits a product is emulated: it rounds its two operands to the
// format, scales included, as a GPU's would, and multiplies them in FP32. So a training has the losses that the format
// gives, but not its speed. Its result is BF16; gradients have the format of what they are for. Products of bf16_fp32
// are BF16's, with sums that stay FP32: torch's out_dtype on a GPU, oneDNN's BF16 mode for FP32 on a CPU that has one.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <comp/core/error.hpp>
#include <comp/core/product.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/hook/tf32.hpp>
#include <comp_libtorch/kernels/fp8_product.hpp>
#include <comp_libtorch/kernels/kernel.hpp>
#include <comp_libtorch/kernels/quantize.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
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

inline at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// A matrix that two of a layer's products read, each in its precision: x, w or dy.
class layer_operand {
 public:
  layer_operand(at::Tensor matrix, operand is) : matrix_{std::move(matrix)}, is_{is} {}
  /// `saved` begins with the three tensors that save() added.
  layer_operand(std::span<const at::Tensor> saved, operand is)
      : matrix_{saved[0]}, in_fp8_{saved[1], saved[2]}, is_{is} {}

  std::int64_t rows() const { return any().numel() / columns(); }
  std::int64_t columns() const { return any().size(-1); }
  c10::Device device() const { return any().device(); }

  /// Returns: the values that a product in `p` reads.
  at::Tensor values(precision p, comp::product of, bool transposed) const {
    const at::Tensor low = is_ == operand::weight ? matrix_ : matrix_.to(scalar_type(p));
    const at::Tensor read = transposed ? rows_of(low).t() : low;
    return is_scaled(p) ? quantizer{format_of(p, of, is_)}(read.to(at::kFloat).contiguous()) : read.to(scalar_type(p));
  }
  /// Returns: the matrix in FP8, which is rounded once for both products that read this.
  fp8_matrix in_fp8(bool transposed) {
    if (!in_fp8_.elements.defined())
      in_fp8_ = to_fp8(is_ == operand::weight ? matrix_ : rows_of(matrix_).to(at::kBFloat16),
                       format_of(precision::fp8_e4m3, product::all, is_).element);
    return transposed ? in_fp8_.transposed() : in_fp8_;
  }
  /// Adds what the backward needs: the matrix in FP8 (a byte per element) if it is there in FP8 and is read in it.
  void save(torch::autograd::variable_list& to, bool reads_fp8) const {
    const bool narrow = reads_fp8 && in_fp8_.elements.defined();
    to.push_back(narrow ? at::Tensor{} : matrix_);
    to.push_back(narrow ? in_fp8_.elements : at::Tensor{});
    to.push_back(narrow ? in_fp8_.scale : at::Tensor{});
  }

 private:
  const at::Tensor& any() const { return matrix_.defined() ? matrix_ : in_fp8_.elements; }

  at::Tensor matrix_;
  fp8_matrix in_fp8_;
  operand is_;
};

/// One product of a layer: y = x w', dx = dy w or dw = dy' x.
struct layer_product {
  precision in;
  comp::product of;

  /// Returns: the product of the two in the format of `in`; FP32 for bf16_fp32, and below 16 bits but for y and dx that
  /// the device multiplied, which are BF16.
  at::Tensor operator()(layer_operand& a, layer_operand& b, const std::optional<at::Tensor>& bias = {}) const {
    const auto bias_in = [&](at::ScalarType type) { return bias ? std::optional{bias->to(type)} : std::nullopt; };
    if (a.rows() > 0 && device_multiplies(b)) {
      auto added = bias_in(at::kBFloat16);
      if (added) added = added->expand({b.rows()}).contiguous();
      return multiply(a.in_fp8(transposes_a()), b.in_fp8(transposes_b()), transposes_a() ? at::kFloat : at::kBFloat16,
                      of == comp::product::forward, added);
    }
    const at::Tensor left = a.values(in, of, transposes_a()), right = b.values(in, of, transposes_b());
    const at::ScalarType type = result_type();
    if (in == precision::bf16_fp32) {
      if (left.is_cuda()) {
        const at::Tensor sums = at::mm(rows_of(left), right.t(), type);
        return bias ? sums + *bias_in(type) : sums;
      }
      const bf16_products_guard on;
      return at::linear(left.to(type), right.to(type), bias_in(type).value_or(at::Tensor{}));
    }
    std::optional<at::NoTF32Guard> whole_fp32;
    std::optional<tf32_guard> tf32;
    if (is_scaled(in)) whole_fp32.emplace();
    if (in == precision::tf32) tf32.emplace();
    return at::linear(left, right, bias_in(type).value_or(at::Tensor{}));
  }
  /// Returns: the format that the product is summed in and, unless the device multiplies, has.
  at::ScalarType result_type() const { return is_scaled(in) ? at::kFloat : scalar_type(handed_on(in)); }
  /// Returns: whether the device multiplies by `b` in this precision. Other formats and sizes are emulated.
  bool device_multiplies(const layer_operand& b) const {
    const auto [rows, columns] = transposes_b() ? std::pair{b.columns(), b.rows()} : std::pair{b.rows(), b.columns()};
    return multiplies_itself(in, b.device()) && has_fp8_product(rows, columns);
  }

 private:
  // Products are of rows by rows.
  bool transposes_a() const { return of == comp::product::weight_gradient; }
  bool transposes_b() const { return of != comp::product::forward; }
};

/// y = x w' + b. x is (...,K) in the format of the forward's results, w is (N,K).
class scaled_linear : public torch::autograd::Function<scaled_linear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b, const product_precisions& in) {
    layer_operand of_x{is_scaled(in.forward) ? rows_of(x) : x, operand::input}, of_w{w, operand::weight};
    const at::Tensor y = layer_product{in.forward, product::forward}(of_x, of_w, b);
    torch::autograd::variable_list saved{w};
    if (w.requires_grad())
      of_x.save(saved, layer_product{in.weight_gradient, product::weight_gradient}.device_multiplies(of_x));
    context->save_for_backward(saved);
    context->saved_data["forward"] = static_cast<std::int64_t>(in.forward);
    context->saved_data["input_gradient"] = static_cast<std::int64_t>(in.input_gradient);
    context->saved_data["weight_gradient"] = static_cast<std::int64_t>(in.weight_gradient);
    context->saved_data["bias"] = b ? static_cast<std::int64_t>(b->scalar_type()) : std::int64_t{-1};
    auto shape = x.sizes().vec();
    shape.back() = w.size(0);
    return at::_unsafe_view(y.to(scalar_type(handed_on(in.forward))),
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
    const at::Tensor &w = saved[0], dy = rows_of(gradients[0]);
    layer_operand of_dy{dy, operand::gradient};
    const std::int64_t bias = context->saved_data["bias"].toInt();
    torch::autograd::variable_list result(4);
    if (context->needs_input_grad(0)) {
      auto shape = gradients[0].sizes().vec();
      shape.back() = w.size(1);
      layer_operand of_w{w, operand::weight};  // in FP8 anew: each call of the layer would keep a copy
      result[0] = of_input(of_dy, of_w).to(scalar_type(handed_on(of_input.in))).to(dy.scalar_type()).view(shape);
    }
    if (context->needs_input_grad(1)) {
      layer_operand of_x{std::span{saved}.subspan(1), operand::input};
      result[1] = of_weight(of_dy, of_x).to(w.scalar_type());
    }
    if (bias >= 0 && context->needs_input_grad(2)) {
      const at::Tensor read = dy.to(scalar_type(of_weight.in));
      result[2] = read.sum(0, false, of_weight.result_type()).to(static_cast<at::ScalarType>(bias));
    }
    return result;
  }
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
  return replace_arguments(stack, arguments, scaled_linear::apply(x.to(scalar_type(in.forward)), w, bias, in));
}

}  // namespace comp::libtorch::detail
