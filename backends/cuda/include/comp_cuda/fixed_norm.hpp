// SPDX-License-Identifier: Apache-2.0
// Batch norm by given statistics, and its backward: for evaluations and for frozen layers. Also how any batch norm is
// described to cuDNN.
#pragma once

#include <comp_native/op/norm.hpp>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "dnn.hpp"

namespace comp::cuda {

using native::batch_norm_options;

namespace detail {

inline void require_norm(const tensor& x, std::initializer_list<const parameter*> all) {
  const std::int64_t channels = native::channels("batch_norm", x.shape());
  for (const parameter* p : all) native::require_vector("batch_norm", p->extents, x.shape(), channels);
}

/// A batch norm as cuDNN is told of it. A (B,C) is normalised per activation, but cuDNN limits B there. For a
/// larger B the plain route of a training describes it as B images of one pixel. With given statistics cuDNN limits the
/// number of images too, and the plain route describes one image of B pixels.
struct norm_plan {
  cudnnBatchNormMode_t mode;
  tensor_descriptor x, vectors;
  norm_plan(const tensor& t, bool training, route by)
      : mode{t.shape().size() == 2 && by != route::plain     ? CUDNN_BATCHNORM_PER_ACTIVATION
             : training && t.order() == order::channels_last ? CUDNN_BATCHNORM_SPATIAL_PERSISTENT
                                                             : CUDNN_BATCHNORM_SPATIAL},
        x{t.shape().size() == 2 && by == route::plain && !training
              ? describe({1, t.shape()[1], t.shape()[0], 1}, storage_of(t.precision()), order::channels_last)
              : describe(t)} {
    check(cudnnDeriveBNTensorDescriptor(vectors.get(), x.get(), mode), "describing statistics to cuDNN");
  }
  bool persistent() const { return mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT; }
};
inline constexpr auto norm_alone = CUDNN_BATCHNORM_OPS_BN;  // cuDNN's persistent kernels could also add and apply ReLU

/// Returns: scale * (x - mean) / sqrt(variance + eps) + shift. Each vector has a value for each channel.
inline tensor normalised(context& c, const tensor& x, const float* scale, const float* shift, const float* mean,
                         const float* variance, double eps) {
  auto& library = c.part<dnn>();
  tensor y;
  library.by_route(case_of('i', x), "batch norm by running statistics", [&](route by) {
    const tensor in = routed(c, x, by);
    const norm_plan plan{in, false, by};
    y = c.make_like(in);
    return cudnnBatchNormalizationForwardInference(library.handle(), plan.mode, &dnn_one, &dnn_zero, plan.x.get(),
                                                   in.materialize(), plan.x.get(), y.materialize(), plan.vectors.get(),
                                                   scale, shift, mean, variance, eps);
  });
  return cast(c, y, x.precision());
}

/// The backward of a norm by given statistics, which cuDNN does not have. It is made of norms: dx = dy * gamma /
/// deviation is a norm of dy around 0, and the gradient of gamma is the sum of dy times x normalised with scale 1.
inline tensor fixed_norm_backward(context& c, const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                  parameter& gamma, parameter& beta, double eps) {
  const auto *mean = saved[0].materialize_as<float>(), *variance = saved[1].materialize_as<float>();
  const tensor zeros = c.make_like(saved[0]), ones = c.make_like(saved[0]);
  c.clear(zeros.materialize(), zeros.size() * 4);
  const chain_step<float> to_one[] = {{.kind = step_kind::sigmoid}, {.kind = step_kind::scale, .number = 2}};
  run_chain<float>(c.stream().get(), zeros.materialize_as<float>(), ones.materialize_as<float>(), ones.size(), to_one);
  const auto* zero = zeros.materialize_as<float>();
  tensor dx = normalised(c, dy, gamma.value.materialize_as<float>(), zero, zero, variance, eps);
  const tensor g = in_order(c, cast(c, dy, precision::fp32), order::channels_last);
  if (gamma.trainable) {
    const tensor wide = in_order(c, cast(c, x, precision::fp32), order::channels_last);
    const tensor product =
        in_order(c, normalised(c, wide, ones.materialize_as<float>(), zero, mean, variance, eps), g.order());
    const chain_step<float> by{.kind = step_kind::mul, .other = g.materialize_as<float>()};
    run_chain<float>(c.stream().get(), product.materialize_as<float>(), product.materialize_as<float>(), product.size(),
                     {&by, 1});
    channel_sums(c, product, gradient_of(c, gamma));
  }
  if (beta.trainable) channel_sums(c, g, gradient_of(c, beta));
  return dx;
}

}  // namespace detail

}  // namespace comp::cuda
