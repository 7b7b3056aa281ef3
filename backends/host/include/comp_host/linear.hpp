// SPDX-License-Identifier: Apache-2.0
// Linear layers, y = x W' + b, by oneDNN's inner product, which packs the weights for the CPU and also computes the
// gradient of the bias.
#pragma once

#include <comp_native/op/linear.hpp>
#include <cstdint>

#include "context.hpp"
#include "parameter.hpp"
#include "scaled_linear.hpp"
#include "transfer.hpp"

namespace comp::host {

namespace detail {

/// The sizes of a linear layer and the descriptors of its arguments. The layout is `any` if oneDNN may choose. `type`:
/// of what its products multiply; `result`: of y and of the gradient of x.
struct linear_plan {
  context& c;
  std::int64_t rows, inputs, outputs;
  dnnl::memory::data_type type, result;
  bool bias;

  using tag = dnnl::memory::format_tag;
  using kind = dnnl::memory::data_type;
  dnnl::memory::desc x(kind as) const { return {{rows, inputs}, as, tag::ab}; }
  dnnl::memory::desc y(kind as) const { return {{rows, outputs}, as, tag::ab}; }
  dnnl::memory::desc w(kind as) const { return {{outputs, inputs}, as, tag::any}; }
  dnnl::memory::desc b() const { return {{outputs}, kind::f32, tag::a}; }

  key keyed(operation o) const { return key{o, type, result, bias, rows, inputs, outputs}; }
  dnnl::inner_product_forward::primitive_desc forward() const {
    using op = dnnl::inner_product_forward;
    const auto train = dnnl::prop_kind::forward_training;
    return bias ? c.described<op>(train, x(type), w(type), b(), y(result))
                : c.described<op>(train, x(type), w(type), y(result));
  }
  dnnl::inner_product_backward_data::primitive_desc data() const {
    return c.described_backward<dnnl::inner_product_backward_data>(forward(), x(result), w(type), y(type));
  }
  dnnl::inner_product_backward_weights::primitive_desc weights() const {
    using op = dnnl::inner_product_backward_weights;
    return bias ? c.described_backward<op>(forward(), x(type), w(kind::f32), b(), y(type))
                : c.described_backward<op>(forward(), x(type), w(kind::f32), y(type));
  }
};

inline linear_plan plan_linear(context& c, const tensor& x, const parameter& w, const parameter* b, precision as) {
  native::require_linear(x.shape(), w.extents, b ? &b->extents : nullptr);
  return {c,
          elements(x.shape()) / w.extents[1],
          w.extents[1],
          w.extents[0],
          c.type_of(as),
          c.type_of(handed_on(as)),
          b != nullptr};
}

}  // namespace detail

/// Computes a linear layer. x is (...,K), w is (N,K), b is (N) or null. Returns: (...,N), in FP32 for bf16_fp32.
inline tensor linear(context& c, const tensor& x, parameter& w, parameter* b) {
  if (is_scaled(x.precision())) return detail::scaled_linear(c, x, w, b);
  const auto plan = detail::plan_linear(c, x, w, b, x.precision());
  auto& run = c.cached(plan.keyed(operation::linear), [&] {
    const auto pd = plan.forward();
    return c.make_primitive(pd, {{DNNL_ARG_SRC, plan.x(plan.type)},
                                 {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                 {DNNL_ARG_BIAS, plan.b()},
                                 {DNNL_ARG_DST, plan.y(plan.result)}});
  });
  const precision as = read_in(x.precision());
  const tensor y = run_forward(c, run, as_matrix(c, computable(c, cast(c, x, as))), w, b, as);
  shape out = x.shape();
  out.back() = plan.outputs;
  return reshape(c, cast(c, y, handed_on(x.precision())), out);
}

namespace detail {

inline void linear_weight_gradients(context& c, const linear_plan& plan, const tensor& dy, const tensor& x,
                                    parameter& w, parameter* b) {
  auto& run = c.cached(plan.keyed(operation::linear_weights), [&] {
    const auto pd = plan.weights();
    return c.make_primitive(pd, {{DNNL_ARG_SRC, plan.x(plan.type)},
                                 {DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()},
                                 {DNNL_ARG_DIFF_BIAS, plan.b()},
                                 {DNNL_ARG_DIFF_DST, plan.y(plan.type)}});
  });
  run_weight_gradients(c, run, x, dy, w, b);
}

}  // namespace detail

/// Adds the gradients of w and b if `need_parameters`. Returns: the gradient of x in the precision of dy, FP32 for
/// bf16_fp32; empty unless `need_dx`.
inline tensor linear_backward(context& c, const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                              bool need_parameters = true) {
  auto plan = detail::plan_linear(c, x, w, b, dy.precision());
  shape expected = x.shape();
  expected.back() = plan.outputs;
  require_same("linear_backward", dy.shape(), expected);
  if (is_scaled(dy.precision())) return detail::scaled_linear_backward(c, dy, x, w, b, need_dx, need_parameters);
  const precision as = read_in(dy.precision());
  const tensor g = as_matrix(c, computable(c, cast(c, dy, as))), in = as_matrix(c, computable(c, cast(c, x, as)));
  if (need_parameters && (w.trainable || (b && b->trainable))) detail::linear_weight_gradients(c, plan, g, in, w, b);
  if (!need_dx) return {};
  plan.bias = false;
  auto& run = c.cached(plan.keyed(operation::linear_data), [&] {
    const auto pd = plan.data();
    return c.make_primitive(pd, {{DNNL_ARG_DIFF_SRC, plan.x(plan.result)},
                                 {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                 {DNNL_ARG_DIFF_DST, plan.y(plan.type)}});
  });
  const tensor dx = run_data_gradient(c, run, g, w, as);
  return reshape(c, cast(c, dx, handed_on(dy.precision())), x.shape());
}

}  // namespace comp::host
