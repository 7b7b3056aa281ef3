// SPDX-License-Identifier: Apache-2.0
// Batch norm of cuDNN's stand-in: what it supports and needs, its work, and the plain calls. NHWC trains by the
// persistent mode alone, in the extended calls (cudnn_norm_extended.hpp); the plain mode trains NCHW. Statistics are
// FP32.
#pragma once

#include <cmath>

#include "cudnn_tensors.hpp"

namespace simt {

/// The vectors' sizes for x: (1,C,1,1), or (1,C,H,W) per activation.
inline sizes4 statistics_of(const dnn_layout& x, cudnnBatchNormMode_t mode) {
  if (mode == CUDNN_BATCHNORM_PER_ACTIVATION) return {1, x.size[1], x.size[2], x.size[3]};
  return {1, x.size[1], 1, 1};
}
/// Which statistic element i of x belongs to.
inline std::size_t statistic_of(const dnn_layout& x, const sizes4& vectors, std::size_t i) {
  const auto plane = static_cast<std::size_t>(x.size[2] * x.size[3]), channels = static_cast<std::size_t>(x.size[1]);
  return vectors[2] * vectors[3] == x.size[2] * x.size[3] ? i % (plane * channels) : i / plane % channels;
}
inline bool needs_reserve(const dnn_layout& x, cudnnBatchNormMode_t mode) {
  return mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT && !x.is(CUDNN_TENSOR_NCHW);
}
inline std::size_t reserve_bytes(const dnn_layout& x, cudnnBatchNormMode_t mode) {
  return needs_reserve(x, mode) ? static_cast<std::size_t>(x.size[1]) * 4 : 0;
}
inline std::size_t norm_workspace(const dnn_layout& x, cudnnBatchNormMode_t mode) {
  return needs_reserve(x, mode) ? static_cast<std::size_t>(x.size[1]) * 64 : 0;
}

/// What is wrong with tensors to normalise, which all have to be described alike, and their vectors.
inline cudnnStatus_t normable(const dnn_layout& x, const dnn_layout& y, const dnn_layout& vectors,
                              cudnnBatchNormMode_t mode, double epsilon, bool extended, bool training) {
  if (!(x == y) || vectors.type != CUDNN_DATA_FLOAT || vectors.size != statistics_of(x, mode) || !(epsilon >= 0))
    return CUDNN_STATUS_BAD_PARAM;
  const bool pixels_do = dnn.nhwc_norm && mode != CUDNN_BATCHNORM_PER_ACTIVATION &&
                         (!training || (extended && mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT));
  if (!x.is(CUDNN_TENSOR_NCHW) && !(pixels_do && x.is(CUDNN_TENSOR_NHWC))) return dnn.refusal;
  if (mode == CUDNN_BATCHNORM_PER_ACTIVATION && x.size[0] > 131070) return CUDNN_STATUS_NOT_SUPPORTED;
  if (mode != CUDNN_BATCHNORM_PER_ACTIVATION && x.size[0] > (training ? 880801 : 65535))
    return CUDNN_STATUS_NOT_SUPPORTED;  // as frameworks found out
  if (x.type == CUDNN_DATA_BFLOAT16 && !dnn.bf16_norm) return dnn.refusal;
  return typed(x);
}
inline bool both_or_none(const void* a, const void* b) { return !a == !b; }

struct norm_training {
  dnn_layout x, vectors;
  const void *from, *scale, *shift;
  void *to, *running_mean, *running_variance, *mean, *inverse;
  void* reserve;
  float alpha, beta, momentum;
  double epsilon;

  void operator()() const {
    const std::vector<float> in = gather(x, from), gamma = gather(vectors, scale), offset = gather(vectors, shift);
    const std::size_t n = vectors.count();
    const double count = static_cast<double>(in.size() / n);
    std::vector<double> sum(n), square(n);
    const auto of = [&](std::size_t i) { return statistic_of(x, vectors.size, i); };
    for (std::size_t i = 0; i < in.size(); ++i) sum[of(i)] += static_cast<double>(in[i]) / count;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double off = static_cast<double>(in[i]) - sum[of(i)];
      square[of(i)] += off * off / count;
    }
    std::vector<float> batch(n), variance(n), deviation(n), all(in.size());
    for (std::size_t i = 0; i < n; ++i) {
      batch[i] = static_cast<float>(sum[i]);
      variance[i] = count > 1 ? static_cast<float>(square[i] * count / (count - 1)) : std::nanf("");
      deviation[i] = static_cast<float>(1 / std::sqrt(square[i] + epsilon));
    }
    for (std::size_t i = 0; i < in.size(); ++i)
      all[i] = (in[i] - batch[of(i)]) * deviation[of(i)] * gamma[of(i)] + offset[of(i)];
    scatter(x, to, std::move(all), alpha, beta);
    if (running_mean) {
      scatter(vectors, running_mean, batch, momentum, 1 - momentum);
      scatter(vectors, running_variance, variance, momentum, 1 - momentum);
    }
    if (mean) scatter(vectors, mean, batch, 1, 0);
    if (inverse) scatter(vectors, inverse, deviation, 1, 0);
    if (reserve) scatter(vectors, reserve, batch, 1, 0);
  }
};

struct norm_backward {
  dnn_layout x, vectors;
  const void *from, *gradient, *scale;
  void *to, *d_scale, *d_shift;
  const void *mean, *inverse, *reserve;
  float alpha, beta, parameter_alpha, parameter_beta;

  void operator()() const {
    const std::vector<float> in = gather(x, from), g = gather(x, gradient), gamma = gather(vectors, scale),
                             batch = gather(vectors, mean), deviation = gather(vectors, inverse);
    if (reserve && gather(vectors, reserve) != batch)
      throw fault{"the backward of batch norm is given a reserve that its forward did not leave"};
    const std::size_t n = vectors.count();
    const auto of = [&](std::size_t i) { return statistic_of(x, vectors.size, i); };
    std::vector<double> sum(n), dot(n);
    for (std::size_t i = 0; i < in.size(); ++i) {
      sum[of(i)] += static_cast<double>(g[i]);
      dot[of(i)] += static_cast<double>(g[i]) * static_cast<double>((in[i] - batch[of(i)]) * deviation[of(i)]);
    }
    std::vector<float> all(in.size());
    const double count = static_cast<double>(in.size() / n);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::size_t at = of(i);
      const double normal = static_cast<double>((in[i] - batch[at]) * deviation[at]);
      all[i] = static_cast<float>(static_cast<double>(gamma[at] * deviation[at]) *
                                  (static_cast<double>(g[i]) - (sum[at] + normal * dot[at]) / count));
    }
    scatter(x, to, std::move(all), alpha, beta);
    scatter(vectors, d_scale, {dot.begin(), dot.end()}, parameter_alpha, parameter_beta);
    scatter(vectors, d_shift, {sum.begin(), sum.end()}, parameter_alpha, parameter_beta);
  }
};

}  // namespace simt

inline cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t to, cudnnTensorDescriptor_t x,
                                                   cudnnBatchNormMode_t mode) {
  return simt::dnn_call([=] {
    if (!simt::alive(to) || !simt::alive(x)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (!x->set) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    to->type = CUDNN_DATA_FLOAT;
    to->size = simt::statistics_of(*x, mode);
    to->stride = simt::dnn_layout::strides(to->size, CUDNN_TENSOR_NCHW);
    to->set = true;
    return CUDNN_STATUS_SUCCESS;
  });
}

inline cudnnStatus_t cudnnBatchNormalizationForwardInference(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                             const void* alpha, const void* beta,
                                                             cudnnTensorDescriptor_t x_desc, const void* x,
                                                             cudnnTensorDescriptor_t y_desc, void* y,
                                                             cudnnTensorDescriptor_t vectors, const void* scale,
                                                             const void* shift, const void* mean, const void* variance,
                                                             double epsilon) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, y_desc, vectors));
    COMP_DNN_REQUIRE(simt::normable(*x_desc, *y_desc, *vectors, mode, epsilon, false, false));
    COMP_DNN_REQUIRE(simt::addressed(x, y, scale, shift, mean, variance));
    const simt::dnn_layout of = *x_desc, vector = *vectors;
    return simt::give_dnn(handle, [=, by = simt::factor(alpha), keep = simt::factor(beta)] {
      const std::vector<float> in = simt::gather(of, x), gamma = simt::gather(vector, scale),
                               offset = simt::gather(vector, shift), m = simt::gather(vector, mean),
                               v = simt::gather(vector, variance);
      std::vector<float> all(in.size());
      for (std::size_t i = 0; i < in.size(); ++i) {
        const std::size_t at = simt::statistic_of(of, vector.size, i);
        const double scale_by = static_cast<double>(gamma[at]) / std::sqrt(static_cast<double>(v[at]) + epsilon);
        all[i] = static_cast<float>(static_cast<double>(in[i] - m[at]) * scale_by + static_cast<double>(offset[at]));
      }
      simt::scatter(of, y, std::move(all), by, keep);
    });
  });
}
inline cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta,
    cudnnTensorDescriptor_t x_desc, const void* x, cudnnTensorDescriptor_t y_desc, void* y,
    cudnnTensorDescriptor_t vectors, const void* scale, const void* shift, double momentum, void* running_mean,
    void* running_variance, double epsilon, void* mean, void* inverse) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, y_desc, vectors));
    COMP_DNN_REQUIRE(simt::normable(*x_desc, *y_desc, *vectors, mode, epsilon, false, true));
    COMP_DNN_REQUIRE(simt::addressed(x, y, scale, shift));
    if (!simt::both_or_none(running_mean, running_variance) || !simt::both_or_none(mean, inverse))
      return CUDNN_STATUS_BAD_PARAM;
    simt::dnn.norms.push_back(mode);
    return simt::give_dnn(handle, simt::norm_training{*x_desc, *vectors, x, scale, shift, y, running_mean,
                                                      running_variance, mean, inverse, nullptr, simt::factor(alpha),
                                                      simt::factor(beta), static_cast<float>(momentum), epsilon});
  });
}
inline cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta, const void* parameter_alpha,
    const void* parameter_beta, cudnnTensorDescriptor_t x_desc, const void* x, cudnnTensorDescriptor_t dy_desc,
    const void* dy, cudnnTensorDescriptor_t dx_desc, void* dx, cudnnTensorDescriptor_t vectors, const void* scale,
    void* d_scale, void* d_shift, double epsilon, const void* mean, const void* inverse) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, dy_desc, dx_desc, vectors));
    COMP_DNN_REQUIRE(simt::normable(*x_desc, *dy_desc, *vectors, mode, epsilon, false, true));
    COMP_DNN_REQUIRE(simt::normable(*x_desc, *dx_desc, *vectors, mode, epsilon, false, true));
    COMP_DNN_REQUIRE(simt::addressed(x, dy, dx, scale, d_scale, d_shift, mean, inverse));
    return simt::give_dnn(handle, simt::norm_backward{*x_desc, *vectors, x, dy, scale, dx, d_scale, d_shift, mean,
                                                      inverse, nullptr, simt::factor(alpha), simt::factor(beta),
                                                      simt::factor(parameter_alpha), simt::factor(parameter_beta)});
  });
}
