// SPDX-License-Identifier: Apache-2.0
// Batch and layer normalisation by oneDNN. Statistics, scale and shift are FP32, whatever the precision of the tensors.
#pragma once

#include <comp_native/device.hpp>
#include <comp_native/op/norm.hpp>
#include <cstdint>
#include <utility>
#include <vector>

#include "context.hpp"
#include "parameter.hpp"
#include "transfer.hpp"

namespace comp::host {

using native::batch_norm_options;

namespace detail {

using norm_flags = dnnl::normalization_flags;

/// Returns x in a layout that batch_norm_places() describes.
inline tensor normable(context& c, const tensor& x) {
  return x.shape().size() == 4 ? computable(c, x) : row_major(c, as_matrix(c, computable(c, x)));
}
/// Returns the descriptor of four axes that oneDNN asks for. A tensor (B,C) is described as one image of B pixels with
/// channels last. Described as B images of one pixel, oneDNN has no vector code for it, and takes 40 times as long for
/// 1024 channels in FP32, and 130 times in BF16.
inline dnnl::memory::desc batch_norm_places(const tensor& in) {
  const auto& desc = in.layout()->desc;
  if (in.shape().size() == 4) return desc;
  return {{1, in.shape()[1], in.shape()[0], 1}, onednn::type_of(desc), dnnl::memory::format_tag::acdb};
}
inline dnnl::batch_normalization_forward::primitive_desc batch_norm_forward(context& c, const dnnl::memory::desc& x,
                                                                            const batch_norm_options& o) {
  auto flags = norm_flags::use_scale | norm_flags::use_shift;
  if (!o.training) flags = flags | norm_flags::use_global_stats;
  return c.described<dnnl::batch_normalization_forward>(dnnl::prop_kind::forward_training, x, x,
                                                        static_cast<float>(o.eps), flags);
}
/// Updates a running statistic: (1 - momentum) running + momentum batch. `factor` turns the batch's variance into
/// PyTorch's, which divides by n - 1.
inline void track(context& c, parameter& running, const tensor& batch, double momentum, double factor) {
  auto* to = running.value.as<float>();
  const auto* from = batch.as<float>();
  const auto keep = static_cast<float>(1 - momentum), take = static_cast<float>(momentum * factor);
  c.run_kernel([&] {
    for (std::int64_t i = 0; i < elements(running.extents); ++i) to[i] = keep * to[i] + take * from[i];
  });
  running.changed();
}
inline key norm_key(operation o, const layout* x, double eps, bool training) {
  return key{o, x->id, __builtin_bit_cast(std::int32_t, static_cast<float>(eps)), training};
}

}  // namespace detail

/// Normalises by channel. x is (B,C,H,W) or (B,C); gamma, beta, mean and variance are (C). In training it normalises by
/// the batch's statistics and updates mean and variance. Saved are the statistics that were used, in FP32.
inline saved_tensor batch_norm(context& c, const tensor& x, parameter& gamma, parameter& beta, parameter& mean,
                               parameter& variance, const batch_norm_options& o) {
  const std::int64_t channels = native::channels("batch_norm", x.shape());
  for (const parameter* p : {&gamma, &beta, &mean, &variance})
    native::require_vector("batch_norm", p->extents, x.shape(), channels);
  const tensor in = detail::normable(c, x);
  auto& run = c.cached(detail::norm_key(operation::batch_norm, in.layout(), o.eps, o.training), [&] {
    const auto places = detail::batch_norm_places(in);
    const auto pd = detail::batch_norm_forward(c, places, o);
    const dnnl::memory::desc vector{{channels}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::a};
    return c.make_primitive(pd, {{DNNL_ARG_SRC, places},
                                 {DNNL_ARG_DST, places},
                                 {DNNL_ARG_SCALE, vector},
                                 {DNNL_ARG_SHIFT, vector},
                                 {DNNL_ARG_MEAN, pd.mean_desc()},
                                 {DNNL_ARG_VARIANCE, pd.variance_desc()}});
  });
  const tensor y = c.make(in.shape(), in.layout());
  tensor batch_mean = o.training ? c.make_plain({channels}) : detail::duplicate(c, mean.value);
  tensor batch_variance = o.training ? c.make_plain({channels}) : detail::duplicate(c, variance.value);
  c.run(run, {{DNNL_ARG_SRC, in.data()},
              {DNNL_ARG_DST, y.data()},
              {DNNL_ARG_SCALE, plain_values(c, gamma)},
              {DNNL_ARG_SHIFT, plain_values(c, beta)},
              {DNNL_ARG_MEAN, batch_mean.data()},
              {DNNL_ARG_VARIANCE, batch_variance.data()}});
  if (o.training) {
    const auto n = static_cast<double>(elements(x.shape()) / channels);
    detail::track(c, mean, batch_mean, o.momentum, 1);
    detail::track(c, variance, batch_variance, o.momentum, n > 1 ? n / (n - 1) : 1);
  }
  return {cast(c, y, x.precision()), {std::move(batch_mean), std::move(batch_variance)}};
}

namespace detail {

/// Makes the backward of either norm. Some versions of oneDNN ask for the shift as an argument although they do not
/// read it; its memory then stays empty.
primitive norm_backward_primitive(context& c, const auto& pd, const dnnl::memory::desc& x, std::int64_t size) {
  const dnnl::memory::desc vector{{size}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::a};
  std::vector<std::pair<int, dnnl::memory::desc>> arguments{{DNNL_ARG_SRC, x},
                                                            {DNNL_ARG_DIFF_DST, x},
                                                            {DNNL_ARG_DIFF_SRC, x},
                                                            {DNNL_ARG_SCALE, vector},
                                                            {DNNL_ARG_DIFF_SCALE, vector},
                                                            {DNNL_ARG_DIFF_SHIFT, vector},
                                                            {DNNL_ARG_MEAN, pd.mean_desc()},
                                                            {DNNL_ARG_VARIANCE, pd.variance_desc()}};
  constexpr int needed = 5;
  if (onednn::inputs_of(pd) > needed) arguments.emplace_back(DNNL_ARG_SHIFT, vector);
  return c.make_primitive(pd, arguments);
}
/// Runs the backward of either norm, and adds the gradients of gamma and beta. Returns: the gradient of `in`.
inline tensor run_norm_backward(context& c, primitive& run, const tensor& in, const tensor& g,
                                const std::vector<tensor>& saved, parameter& gamma, parameter& beta) {
  const tensor dx = c.make(in.shape(), in.layout());
  const tensor d_gamma = gradient_target(c, gamma, run.places(DNNL_ARG_DIFF_SCALE)),
               d_beta = gradient_target(c, beta, run.places(DNNL_ARG_DIFF_SHIFT));
  c.run(run, {{DNNL_ARG_SRC, in.data()},
              {DNNL_ARG_DIFF_DST, g.data()},
              {DNNL_ARG_DIFF_SRC, dx.data()},
              {DNNL_ARG_SCALE, plain_values(c, gamma)},
              {DNNL_ARG_DIFF_SCALE, d_gamma.data()},
              {DNNL_ARG_DIFF_SHIFT, d_beta.data()},
              {DNNL_ARG_MEAN, saved[0].data()},
              {DNNL_ARG_VARIANCE, saved[1].data()}});
  add_gradient(c, gamma, d_gamma);
  add_gradient(c, beta, d_beta);
  return dx;
}

}  // namespace detail

/// Adds the gradients of gamma and beta. Returns: the gradient of x.
inline tensor batch_norm_backward(context& c, const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                  parameter& gamma, parameter& beta, const batch_norm_options& o) {
  require_same("batch_norm_backward", dy.shape(), x.shape());
  const tensor in = detail::normable(c, cast(c, x, dy.precision()));
  const tensor g = placed(c, detail::normable(c, dy), in.layout());
  auto& run = c.cached(detail::norm_key(operation::batch_norm_backward, in.layout(), o.eps, o.training), [&] {
    const auto places = detail::batch_norm_places(in);
    const auto forward = detail::batch_norm_forward(c, places, o);
    auto flags = detail::norm_flags::use_scale | detail::norm_flags::use_shift;
    if (!o.training) flags = flags | detail::norm_flags::use_global_stats;
    const auto pd = c.described_backward<dnnl::batch_normalization_backward>(
        forward, dnnl::prop_kind::backward, places, places, places, static_cast<float>(o.eps), flags);
    return detail::norm_backward_primitive(c, pd, places, x.shape()[1]);
  });
  const tensor dx = detail::run_norm_backward(c, run, in, g, saved, gamma, beta);
  return cast(c, dx, dy.precision());
}

namespace detail {

inline dnnl::layer_normalization_forward::primitive_desc layer_norm_forward(context& c, const layout* x, double eps) {
  return c.described<dnnl::layer_normalization_forward>(dnnl::prop_kind::forward_training, x->desc, x->desc,
                                                        static_cast<float>(eps),
                                                        norm_flags::use_scale | norm_flags::use_shift);
}

}  // namespace detail

/// Normalises each row. x is (...,C), gamma and beta are (C). Saved are each row's mean and variance, in FP32.
inline saved_tensor layer_norm(context& c, const tensor& x, parameter& gamma, parameter& beta, double eps) {
  require_some("layer_norm", x.shape());
  const std::int64_t width = x.shape().back();
  for (const parameter* p : {&gamma, &beta}) native::require_vector("layer_norm", p->extents, x.shape(), width);
  const tensor in = as_matrix(c, computable(c, x));
  auto& run = c.cached(detail::norm_key(operation::layer_norm, in.layout(), eps, true), [&] {
    const auto pd = detail::layer_norm_forward(c, in.layout(), eps);
    const dnnl::memory::desc vector{{width}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::a};
    return c.make_primitive(pd, {{DNNL_ARG_SRC, in.layout()->desc},
                                 {DNNL_ARG_DST, pd.dst_desc()},
                                 {DNNL_ARG_SCALE, vector},
                                 {DNNL_ARG_SHIFT, vector},
                                 {DNNL_ARG_MEAN, pd.mean_desc()},
                                 {DNNL_ARG_VARIANCE, pd.variance_desc()}});
  });
  const tensor y = c.make(run.places(DNNL_ARG_DST));
  tensor mean = c.make(run.places(DNNL_ARG_MEAN)), variance = c.make(run.places(DNNL_ARG_VARIANCE));
  c.run(run, {{DNNL_ARG_SRC, in.data()},
              {DNNL_ARG_DST, y.data()},
              {DNNL_ARG_SCALE, plain_values(c, gamma)},
              {DNNL_ARG_SHIFT, plain_values(c, beta)},
              {DNNL_ARG_MEAN, mean.data()},
              {DNNL_ARG_VARIANCE, variance.data()}});
  return {reshape(c, cast(c, y, x.precision()), x.shape()), {std::move(mean), std::move(variance)}};
}

/// Adds the gradients of gamma and beta. Returns: the gradient of x.
inline tensor layer_norm_backward(context& c, const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                  parameter& gamma, parameter& beta, double eps) {
  require_same("layer_norm_backward", dy.shape(), x.shape());
  const tensor in = as_matrix(c, computable(c, cast(c, x, dy.precision()))), g = as_matrix(c, computable(c, dy));
  auto& run = c.cached(detail::norm_key(operation::layer_norm_backward, in.layout(), eps, true), [&] {
    const auto flags = detail::norm_flags::use_scale | detail::norm_flags::use_shift;
    const auto forward = detail::layer_norm_forward(c, in.layout(), eps);
    const auto& desc = in.layout()->desc;
    const auto pd = c.described_backward<dnnl::layer_normalization_backward>(
        forward, dnnl::prop_kind::backward, desc, desc, desc, static_cast<float>(eps), flags);
    return detail::norm_backward_primitive(c, pd, desc, x.shape().back());
  });
  const tensor dx = detail::run_norm_backward(c, run, in, g, saved, gamma, beta);
  return reshape(c, cast(c, dx, dy.precision()), x.shape());
}

}  // namespace comp::host
