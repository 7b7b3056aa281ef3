// SPDX-License-Identifier: Apache-2.0
// Linear layers, y = x W' + b: one product adds the bias, and can apply the ReLU behind the layer
// (pending_product.hpp).
// The gradient of the weights is a product that adds to FP32, so that micro-batches lose no bits.
#pragma once

#include <comp_native/op/linear.hpp>

#include "fp8.hpp"
#include "layout.hpp"
#include "matmul.hpp"
#include "parameter.hpp"
#include "pending_product.hpp"

namespace comp::cuda {

namespace detail {

struct linear_sizes {
  index rows, inputs, outputs;
};
inline linear_sizes sizes_of_linear(const tensor& x, const parameter& w, const parameter* b) {
  native::require_linear(x.shape(), w.extents, b ? &b->extents : nullptr);
  return {x.size() / w.extents[1], w.extents[1], w.extents[0]};
}

/// Returns: a matrix stored in `p`. Requires: p is not FP8, whose operands have a scale.
inline matrix operand(const void* at, precision p, index rows, index columns, bool transposed = false) {
  return {at, data_type(storage_of(p)), rows, columns, transposed};
}

inline void bias_gradient(context& c, const tensor& dy, const linear_sizes& s, parameter& b) {
  with_storage(dy.precision(), [&]<class T>(std::type_identity<T>) {
    const T* from = dy.materialize_as<T>();  // before scratch_of(): the work that fills dy may use scratch memory too
    const auto to = gradient_of(c, b);
    float* scratch = c.scratch_of<float>(column_scratch(s.rows, s.outputs, 1));
    column_sums(c.stream().get(), from, to.at, s.rows, s.outputs, to.adds, scratch);
  });
}
inline void weight_gradient(context& c, const tensor& dy, const tensor& x, const linear_sizes& s, parameter& w) {
  const precision p = dy.precision();
  const auto to = gradient_of(c, w);
  multiply(c, {.a = operand(dy.materialize(), p, s.rows, s.outputs, true),
               .b = operand(x.materialize(), p, s.rows, s.inputs),
               .to = to.at,
               .type = CUDA_R_32F,
               .tf32 = p == precision::tf32,
               .beta = to.adds ? 1.0F : 0.0F});
}

}  // namespace detail

/// x is (...,K), w is (N,K), b is (N) or null. Returns: (...,N), which may be pending.
inline tensor linear(context& c, const tensor& x, parameter& w, parameter* b) {
  const auto s = detail::sizes_of_linear(x, w, b);
  const precision p = x.precision();
  shape out = x.shape();
  out.back() = s.outputs;
  const tensor in = row_major(c, x);
  if (is_fp8(p)) return detail::product(c, std::move(out), p, detail::fp8_linear(c, in, w, b));
  (void)in.materialize();  // so that pending work holds the tensors of one layer, not of a chain of layers
  return detail::product(c, std::move(out), p,
                         [=, at = weight_tensor(c, w, p), bias = b ? weight_tensor(c, *b, p) : tensor{}](
                             context& on, void* to, bool relu) {
                           multiply(on, {.a = detail::operand(in.materialize(), p, s.rows, s.inputs),
                                         .b = detail::operand(at.materialize(), p, s.outputs, s.inputs, true),
                                         .to = to,
                                         .type = data_type(storage_of(p)),
                                         .tf32 = p == precision::tf32,
                                         .bias = bias.materialize(),
                                         .relu = relu});
                         });
}

/// Adds the gradients of w and b if `need_parameters`. Returns: the gradient of x in the precision of dy; empty unless
/// `need_dx`.
inline tensor linear_backward(context& c, const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                              bool need_parameters = true) {
  const auto s = detail::sizes_of_linear(x, w, b);
  shape expected = x.shape();
  expected.back() = s.outputs;
  require_same("linear_backward", dy.shape(), expected);
  const precision p = dy.precision();
  const tensor g = row_major(c, dy), in = row_major(c, x);
  const bool need_dw = need_parameters && w.trainable;
  if (need_parameters && b && b->trainable) detail::bias_gradient(c, g, s, *b);
  const tensor dx = need_dx ? c.make(x.shape(), p) : tensor{};
  if (is_fp8(p)) return detail::fp8_linear_backward(c, g, cast(c, in, p), w, need_dw, dx), dx;
  if (need_dw) detail::weight_gradient(c, g, cast(c, in, p), s, w);
  if (!need_dx) return {};
  multiply(c, {.a = detail::operand(g.materialize(), p, s.rows, s.outputs),
               .b = detail::operand(weights(c, w, p), p, s.outputs, s.inputs),
               .to = dx.materialize(),
               .type = data_type(storage_of(p)),
               .tf32 = p == precision::tf32});
  return dx;
}

}  // namespace comp::cuda
