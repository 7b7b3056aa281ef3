// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last axis; statistics, scale and shift in FP32 whatever the tensors are.
#pragma once

#include <vector>

#include "parameter.hpp"

namespace comp::cuda {

using saved_tensor = native::with_saved<tensor>;

namespace detail {

/// Where the gradients of two parameters of one size go that one kernel writes: adds, if either is to be added to.
struct gradient_pair {
  float *first, *second;
  bool adds;
};
/// A parameter that does not learn leaves its gradient in `unused`.
inline gradient_pair gradients_of(context& c, parameter& first, parameter& second, float* unused) {
  const gradient_place a = first.trainable ? gradient_of(c, first) : gradient_place{unused, false};
  const gradient_place b = second.trainable ? gradient_of(c, second) : gradient_place{unused, false};
  const bool adds = a.adds || b.adds;
  const auto bytes = static_cast<std::int64_t>(sizeof(float)) * elements(first.extents);
  if (adds && !a.adds) c.clear(a.at, bytes);
  if (adds && !b.adds) c.clear(b.at, bytes);
  return {a.at, b.at, adds};
}

}  // namespace detail

/// x is (...,C), gamma and beta are (C). saved: each row's mean and inverse deviation, FP32.
inline saved_tensor layer_norm(context& c, const tensor& x, parameter& gamma, parameter& beta, double eps) {
  require_some("layer_norm", x.shape());
  const std::int64_t width = x.shape().back(), rows = x.size() / width;
  for (const parameter* p : {&gamma, &beta}) native::require_vector("layer_norm", p->extents, x.shape(), width);
  const tensor in = row_major(c, x), y = c.make_like(in);
  tensor mean = c.make({rows}, precision::fp32), inverse_deviation = c.make({rows}, precision::fp32);
  with_storage(in.precision(), [&]<class T>(std::type_identity<T>) {
    layer_norm<T>(c.stream().get(), in.materialize_as<T>(), gamma.value.materialize_as<float>(),
                  beta.value.materialize_as<float>(), y.materialize_as<T>(), mean.materialize_as<float>(),
                  inverse_deviation.materialize_as<float>(), rows, width, eps);
  });
  return {y, {std::move(mean), std::move(inverse_deviation)}};
}

/// Adds the gradients of gamma and beta. Returns: the gradient of x.
inline tensor layer_norm_backward(context& c, const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                  parameter& gamma, parameter& beta) {
  require_same("layer_norm_backward", dy.shape(), x.shape());
  const tensor in = row_major(c, cast(c, x, dy.precision())), g = row_major(c, dy), dx = c.make_like(g);
  const std::int64_t width = x.shape().back(), rows = x.size() / width;
  const auto *mean = saved[0].materialize_as<float>(), *inverse_deviation = saved[1].materialize_as<float>();
  with_storage(g.precision(), [&]<class T>(std::type_identity<T>) {
    layer_norm_backward<T>(c.stream().get(), g.materialize_as<T>(), in.materialize_as<T>(),
                           gamma.value.materialize_as<float>(), mean, inverse_deviation, dx.materialize_as<T>(), rows,
                           width);
    if (!gamma.trainable && !beta.trainable) return;
    float* scratch = c.scratch_of<float>(column_scratch(rows, width, 2) + width);
    const auto to = detail::gradients_of(c, gamma, beta, scratch + column_scratch(rows, width, 2));
    layer_norm_parameters_backward<T>(c.stream().get(), g.materialize_as<T>(), in.materialize_as<T>(), mean,
                                      inverse_deviation, to.first, to.second, rows, width, to.adds, scratch);
  });
  return dx;
}

}  // namespace comp::cuda
