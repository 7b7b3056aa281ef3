// SPDX-License-Identifier: Apache-2.0
// Batch norm by cuDNN, in the order that x has. Statistics, scale and shift are FP32 whatever the tensors are.
// A channels_last x trains with cuDNN's persistent kernels, which are deterministic and hand a reserve from forward to
// backward; a row-major x with the plain kernels; a (B,C) with those per activation. If cuDNN has no kernel for a type
// or an order, copies in another storage are normalised, and the shape remembers it (dnn.hpp).
#pragma once

#include <comp_native/op/norm.hpp>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "dnn.hpp"

namespace comp::cuda {

using native::batch_norm_options;
using saved_tensor = native::with_saved<tensor>;

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

/// The statistics of a batch.
struct norm_statistics {
  tensor mean, inverse_deviation, reserve;  // what the backward needs; reserve: cuDNN's own, empty if it has none
  float *running_mean, *running_variance;   // what cuDNN updates; null: nothing
};

inline cudnnStatus_t train_persistent(context& c, const norm_plan& plan, const tensor& x, const tensor& y,
                                      const float* gamma, const float* beta, norm_statistics& s,
                                      const batch_norm_options& o) {
  const cudnnHandle_t handle = c.part<dnn>().handle();
  std::size_t work = 0, kept = 0;
  cudnnStatus_t status = cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
      handle, plan.mode, norm_alone, plan.x.get(), nullptr, plan.x.get(), plan.vectors.get(), nullptr, &work);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle, plan.mode, norm_alone, nullptr, plan.x.get(),
                                                                  &kept);
  }
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (std::cmp_greater(work, c.workspace_limit())) return CUDNN_STATUS_NOT_SUPPORTED;
  if (kept > 0) s.reserve = c.make({static_cast<std::int64_t>((kept + 3) / 4)}, precision::fp32);
  return cudnnBatchNormalizationForwardTrainingEx(
      handle, plan.mode, norm_alone, &dnn_one, &dnn_zero, plan.x.get(), x.materialize(), nullptr, nullptr, plan.x.get(),
      y.materialize(), plan.vectors.get(), gamma, beta, o.momentum, s.running_mean, s.running_variance, o.eps,
      s.mean.materialize(), s.inverse_deviation.materialize(), nullptr, c.scratch(static_cast<std::int64_t>(work)),
      work, s.reserve.materialize(), kept);
}

/// Updates the running statistics for a batch with one value per channel: running = (1 - momentum) running + momentum
/// batch. cuDNN would divide the variance by n - 1 = 0; here it counts as 0.
inline void track_single(context& c, const norm_statistics& s, parameter& mean, parameter& variance, double momentum) {
  const tensor part = c.make_like(s.mean);
  const auto count = s.mean.size();
  const cudaStream_t on = c.stream().get();
  const chain_step<float> take{.kind = step_kind::scale, .number = static_cast<float>(momentum)};
  const chain_step<float> keep[] = {{.kind = step_kind::scale, .number = static_cast<float>(1 - momentum)},
                                    {.kind = step_kind::add, .other = part.materialize_as<float>()}};
  run_chain<float>(on, s.mean.materialize_as<float>(), part.materialize_as<float>(), count, {&take, 1});
  run_chain<float>(on, mean.value.materialize_as<float>(), mean.value.materialize_as<float>(), count, keep);
  run_chain<float>(on, variance.value.materialize_as<float>(), variance.value.materialize_as<float>(), count,
                   {keep, 1});
}

inline saved_tensor train_norm(context& c, const tensor& x, parameter& gamma, parameter& beta, parameter& mean,
                               parameter& variance, const batch_norm_options& o) {
  auto& library = c.part<dnn>();
  const std::int64_t channels = x.shape()[1];
  const bool single = x.size() == channels;
  norm_statistics s{c.make({channels}, precision::fp32),
                    c.make({channels}, precision::fp32),
                    {},
                    single ? nullptr : mean.value.materialize_as<float>(),
                    single ? nullptr : variance.value.materialize_as<float>()};
  tensor y;
  library.by_route(case_of('n', x), "batch norm", [&](route by) {
    const tensor in = routed(c, x, by);
    const norm_plan plan{in, true, by};
    s.reserve = {};
    y = c.make_like(in);
    const auto *scale = gamma.value.materialize_as<float>(), *shift = beta.value.materialize_as<float>();
    if (plan.persistent()) return train_persistent(c, plan, in, y, scale, shift, s, o);
    return cudnnBatchNormalizationForwardTraining(library.handle(), plan.mode, &dnn_one, &dnn_zero, plan.x.get(),
                                                  in.materialize(), plan.x.get(), y.materialize(), plan.vectors.get(),
                                                  scale, shift, o.momentum, s.running_mean, s.running_variance, o.eps,
                                                  s.mean.materialize(), s.inverse_deviation.materialize());
  });
  if (single) track_single(c, s, mean, variance, o.momentum);
  mean.changed();
  variance.changed();
  std::vector<tensor> saved{s.mean, s.inverse_deviation};
  if (s.reserve) saved.push_back(s.reserve);
  return {cast(c, y, x.precision()), std::move(saved)};
}

}  // namespace detail

/// x is (B,C,H,W) or (B,C); gamma, beta, mean and variance are (C). A training normalises by the statistics of the
/// batch and updates mean and variance; an evaluation normalises by mean and variance.
/// saved: in a training the batch's mean, 1/sqrt(variance + eps) and, if there is one, cuDNN's reserve; else copies of
/// mean and variance.
inline saved_tensor batch_norm(context& c, const tensor& x, parameter& gamma, parameter& beta, parameter& mean,
                               parameter& variance, const batch_norm_options& o) {
  detail::require_norm(x, {&gamma, &beta, &mean, &variance});
  if (o.training) return detail::train_norm(c, x, gamma, beta, mean, variance, o);
  std::vector<tensor> saved{duplicate(c, mean.value), duplicate(c, variance.value)};
  tensor y = detail::normalised(c, x, gamma.value.materialize_as<float>(), beta.value.materialize_as<float>(),
                                saved[0].materialize_as<float>(), saved[1].materialize_as<float>(), o.eps);
  return {std::move(y), std::move(saved)};
}

namespace detail {

/// The destination of cuDNN's gradients of scale and shift. One call either writes both or adds to both, so they go
/// straight to the parameters only if both want the same; else they go to other memory and finish() adds them.
class norm_gradients {
 public:
  norm_gradients(context& c, parameter& gamma, parameter& beta) : c_{c}, gamma_{gamma}, beta_{beta} {
    direct_ = gamma.trainable && beta.trainable && gamma.fresh == beta.fresh;
    if (direct_) {
      scale_ = gradient_of(c, gamma);
      shift_ = gradient_of(c, beta);
      return;
    }
    for (tensor* t : {&apart_[0], &apart_[1]}) *t = c.make({elements(gamma.extents)}, precision::fp32);
    scale_ = {apart_[0].materialize_as<float>(), false};
    shift_ = {apart_[1].materialize_as<float>(), false};
  }
  float* scale() const { return scale_.at; }
  float* shift() const { return shift_.at; }
  /// Returns: cuDNN's beta: 1 to add to what is there, 0 to overwrite it.
  const float* keeps() const { return scale_.adds ? &dnn_one : &dnn_zero; }
  void finish() const {
    if (direct_) return;
    if (gamma_.trainable) add_to(c_, gradient_of(c_, gamma_), apart_[0]);
    if (beta_.trainable) add_to(c_, gradient_of(c_, beta_), apart_[1]);
  }

 private:
  context& c_;
  parameter &gamma_, &beta_;
  bool direct_ = false;
  gradient_place scale_{}, shift_{};
  tensor apart_[2];
};

inline cudnnStatus_t train_persistent_backward(context& c, const norm_plan& plan, const tensor& dy, const tensor& x,
                                               const tensor& dx, const std::vector<tensor>& saved,
                                               const parameter& gamma, const norm_gradients& to, double eps) {
  const cudnnHandle_t handle = c.part<dnn>().handle();
  const cudnnTensorDescriptor_t d = plan.x.get();
  std::size_t work = 0, kept = 0;
  cudnnStatus_t status = cudnnGetBatchNormalizationBackwardExWorkspaceSize(
      handle, plan.mode, norm_alone, d, nullptr, d, nullptr, d, plan.vectors.get(), nullptr, &work);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle, plan.mode, norm_alone, nullptr, d, &kept);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const std::int64_t there = saved.size() > 2 ? saved[2].size() : 0;  // a reserve of another size is another route's
  if (there != static_cast<std::int64_t>((kept + 3) / 4) || std::cmp_greater(work, c.workspace_limit()))
    return CUDNN_STATUS_NOT_SUPPORTED;
  return cudnnBatchNormalizationBackwardEx(
      handle, plan.mode, norm_alone, &dnn_one, &dnn_zero, &dnn_one, to.keeps(), d, x.materialize(), nullptr, nullptr, d,
      dy.materialize(), nullptr, nullptr, d, dx.materialize(), plan.vectors.get(), gamma.value.materialize(), nullptr,
      to.scale(), to.shift(), eps, saved[0].materialize(), saved[1].materialize(), nullptr,
      c.scratch(static_cast<std::int64_t>(work)), work, there > 0 ? saved[2].materialize() : nullptr, kept);
}

inline tensor train_norm_backward(context& c, const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                  parameter& gamma, parameter& beta, const batch_norm_options& o) {
  auto& library = c.part<dnn>();
  const norm_gradients to{c, gamma, beta};
  const std::int64_t reserve = saved.size() > 2 ? saved[2].size() : 0;
  tensor dx;
  library.by_route(case_of('g', x, {reserve}), "the backward of batch norm", [&](route by) {
    const tensor in = routed(c, x, by), g = routed(c, dy, by);
    const norm_plan plan{in, true, by};
    dx = c.make_like(in);
    if (plan.persistent()) return train_persistent_backward(c, plan, g, in, dx, saved, gamma, to, o.eps);
    return cudnnBatchNormalizationBackward(library.handle(), plan.mode, &dnn_one, &dnn_zero, &dnn_one, to.keeps(),
                                           plan.x.get(), in.materialize(), plan.x.get(), g.materialize(), plan.x.get(),
                                           dx.materialize(), plan.vectors.get(), gamma.value.materialize(), to.scale(),
                                           to.shift(), o.eps, saved[0].materialize(), saved[1].materialize());
  });
  to.finish();
  return cast(c, dx, dy.precision());
}

}  // namespace detail

/// Adds the gradients of gamma and beta. Returns: the gradient of x, in the precision of dy.
inline tensor batch_norm_backward(context& c, const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                  parameter& gamma, parameter& beta, const batch_norm_options& o) {
  require_same("batch_norm_backward", dy.shape(), x.shape());
  const tensor in = cast(c, x, dy.precision()), g = in_order(c, dy, x.order());
  return o.training ? detail::train_norm_backward(c, g, in, saved, gamma, beta, o)
                    : detail::fixed_norm_backward(c, g, in, saved, gamma, beta, o.eps);
}

}  // namespace comp::cuda
