// SPDX-License-Identifier: Apache-2.0
// Convolution by oneDNN, in the layouts that it picks. The result keeps its layout, so that the operators behind it
// need no reorder.
#pragma once

#include <comp_native/device.hpp>
#include <comp_native/op/conv2d.hpp>

#include "context.hpp"
#include "parameter.hpp"
#include "transfer.hpp"

namespace comp::host {

using native::conv2d_options;

namespace detail {

/// The sizes of a convolution and the descriptors of its arguments.
struct conv2d_plan {
  context& c;
  shape x_sizes, w_sizes, y_sizes;  // with groups, w_sizes is (g,O/g,C/g,R,S)
  conv2d_options options;
  dnnl::memory::data_type type;
  bool bias;
  dnnl::memory::format_tag images = dnnl::memory::format_tag::any;

  using tag = dnnl::memory::format_tag;
  using kind = dnnl::memory::data_type;
  using op = dnnl::convolution_forward;
  dnnl::memory::desc x() const { return {x_sizes, type, images}; }
  dnnl::memory::desc y() const { return {y_sizes, type, images}; }
  dnnl::memory::desc w(kind as) const { return {w_sizes, as, tag::any}; }
  dnnl::memory::desc b() const { return {{y_sizes[1]}, kind::f32, tag::a}; }
  dnnl::memory::dims stride() const { return {options.stride.begin(), options.stride.end()}; }
  dnnl::memory::dims padding() const { return {options.padding.begin(), options.padding.end()}; }
  dnnl::memory::dims gaps() const { return {options.dilation[0] - 1, options.dilation[1] - 1}; }

  key keyed(operation o) const {
    return key{o, type, bias, x_sizes, w_sizes, options.stride, options.padding, options.dilation};
  }
  dnnl::convolution_forward::primitive_desc forward() const {
    const auto train = dnnl::prop_kind::forward_training;
    const auto direct = dnnl::algorithm::convolution_direct;
    return bias ? c.described<op>(train, direct, x(), w(type), b(), y(), stride(), gaps(), padding(), padding())
                : c.described<op>(train, direct, x(), w(type), y(), stride(), gaps(), padding(), padding());
  }
  dnnl::convolution_backward_data::primitive_desc data() const {
    return c.described_backward<dnnl::convolution_backward_data>(forward(), dnnl::algorithm::convolution_direct, x(),
                                                                 w(type), y(), stride(), gaps(), padding(), padding());
  }
  dnnl::convolution_backward_weights::primitive_desc weights() const {
    using back = dnnl::convolution_backward_weights;
    const auto direct = dnnl::algorithm::convolution_direct;
    const auto gradient = w(kind::f32);
    return bias ? c.described_backward<back>(forward(), direct, x(), gradient, b(), y(), stride(), gaps(), padding(),
                                             padding())
                : c.described_backward<back>(forward(), direct, x(), gradient, y(), stride(), gaps(), padding(),
                                             padding());
  }
  /// As weights(), but with channels last if oneDNN's own choice has no AVX-512 code and channels last has. For numbers
  /// of channels that fill no block its choice takes up to 14 times as long.
  dnnl::convolution_backward_weights::primitive_desc fast_weights() const {
    auto chosen = weights();
    if (widest_unit() != vector_unit::avx512 || onednn::uses_avx512(chosen)) return chosen;
    conv2d_plan last = *this;
    last.images = tag::nhwc;
    auto other = last.weights();
    return onednn::uses_avx512(other) ? other : chosen;
  }
};

inline conv2d_plan plan_conv2d(context& c, const tensor& x, const parameter& w, const parameter* b,
                               const conv2d_options& o) {
  const shape &s = x.shape(), &k = w.extents;
  const shape y = native::convolved(s, k, b ? &b->extents : nullptr, o);
  return {c,           s, o.groups == 1 ? k : shape{o.groups, k[0] / o.groups, k[1], k[2], k[3]},
          y,           o, c.type_of(x.precision()),
          b != nullptr};
}

}  // namespace detail

/// Convolves. x is (B,C,H,W), w is (O,C/groups,R,S), b is (O) or null. Returns: (B,O,H',W').
inline tensor conv2d(context& c, const tensor& x, parameter& w, parameter* b, const conv2d_options& o) {
  const auto plan = detail::plan_conv2d(c, x, w, b, o);
  auto& run = c.cached(plan.keyed(operation::conv2d), [&] {
    const auto pd = plan.forward();
    return c.make_primitive(pd, {{DNNL_ARG_SRC, pd.src_desc()},
                                 {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                 {DNNL_ARG_BIAS, plan.b()},
                                 {DNNL_ARG_DST, pd.dst_desc()}});
  });
  const tensor in = placed(c, computable(c, x), run.places(DNNL_ARG_SRC));
  return cast(c, run_forward(c, run, in, w, b, x.precision()), x.precision());
}

namespace detail {

inline void conv2d_weight_gradients(context& c, const conv2d_plan& plan, const tensor& dy, const tensor& x,
                                    parameter& w, parameter* b) {
  auto& run = c.cached(plan.keyed(operation::conv2d_weights), [&] {
    const auto pd = plan.fast_weights();
    return c.make_primitive(pd, {{DNNL_ARG_SRC, pd.src_desc()},
                                 {DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()},
                                 {DNNL_ARG_DIFF_BIAS, plan.b()},
                                 {DNNL_ARG_DIFF_DST, pd.diff_dst_desc()}});
  });
  const tensor in = placed(c, x, run.places(DNNL_ARG_SRC)), g = placed(c, dy, run.places(DNNL_ARG_DIFF_DST));
  run_weight_gradients(c, run, in, g, w, b);
}

}  // namespace detail

/// Adds the gradients of w and b. Returns: the gradient of x in the precision of dy; empty unless `need_dx`.
inline tensor conv2d_backward(context& c, const tensor& dy, const tensor& x, parameter& w, parameter* b,
                              const conv2d_options& o, bool need_dx) {
  auto plan = detail::plan_conv2d(c, x, w, b, o);
  require_same("conv2d_backward", dy.shape(), plan.y_sizes);
  plan.type = c.type_of(dy.precision());
  const tensor g = computable(c, dy);
  if (w.trainable || (b && b->trainable)) {
    detail::conv2d_weight_gradients(c, plan, g, computable(c, cast(c, x, dy.precision())), w, b);
  }
  if (!need_dx) return {};
  plan.bias = false;
  auto& run = c.cached(plan.keyed(operation::conv2d_data), [&] {
    const auto pd = plan.data();
    return c.make_primitive(pd, {{DNNL_ARG_DIFF_SRC, pd.diff_src_desc()},
                                 {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                 {DNNL_ARG_DIFF_DST, pd.diff_dst_desc()}});
  });
  const tensor there = placed(c, g, run.places(DNNL_ARG_DIFF_DST));
  return cast(c, run_data_gradient(c, run, there, w, dy.precision()), dy.precision());
}

}  // namespace comp::host
