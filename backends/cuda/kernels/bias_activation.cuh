// SPDX-License-Identifier: Apache-2.0
// What follows a matrix product: a bias for each column and an activation, in one pass over rows; and their backward.
// Not here: the bias gradient, which is a sum over rows (reductions.cuh); one for each channel of NCHW (cuDNN's
// epilogue).
#pragma once

#include <comp_native/device.hpp>
#include <comp_native/math/elementwise.hpp>

#include "support/rows.cuh"

namespace comp::cuda {

namespace detail {

/// Elements of one row by one block: no sum joins them, so a row needs neither registers nor barriers.
template <class T, class F>
struct biased {
  static constexpr bool one_pass = true;
  pointer<const T> from;
  pointer<const float> bias;
  pointer<T> to;
  index width;
  F f;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    for (index at = lanes.rank() * N; at < width; at += Lanes::count * N) {
      float v[N], b[N] = {};
      load_all<N, T>(from + (r * width + at), v);
      if (bias) load_all<N, float>(bias + at, b);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = f(v[j] + b[j]);
      store_all<N, T>(to + (r * width + at), v);
    }
  }
};
struct unchanged {
  COMP_HD float operator()(float x) const { return x; }
};

}  // namespace detail

/// y = f(x + bias), for any f.
template <class F, class T>
void bias_then(stream on, const T* x, const float* bias, T* y, index rows, index width, F f) {
  constexpr int N = wide<T>;
  const bool packed = fits<N>(x) && fits<N>(y) && fits<N>(bias);
  for_rows<N>(on, rows, width, packed, detail::biased<T, F>{x, bias, y, width, f});
}
template <class T>
void bias_activation(stream on, const T* x, const float* bias, T* y, index rows, index width, native::activation a) {
  namespace m = native::math;
  switch (a) {
    case native::activation::relu:
      return bias_then(on, x, bias, y, rows, width, m::relu{});
    case native::activation::gelu:
      return bias_then(on, x, bias, y, rows, width, m::gelu{});
    case native::activation::tanh:
      return bias_then(on, x, bias, y, rows, width, m::hyperbolic_tangent{});
    case native::activation::sigmoid:
      return bias_then(on, x, bias, y, rows, width, m::sigmoid{});
  }
}
template <class T>
void add_bias(stream on, const T* x, const float* bias, T* y, index rows, index width) {
  bias_then(on, x, bias, y, rows, width, detail::unchanged{});
}

}  // namespace comp::cuda
