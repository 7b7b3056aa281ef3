// SPDX-License-Identifier: Apache-2.0
// Adds a bias to each column, and applies ReLU if `relu`, in one pass over rows: for convolutions in channels_last.
#pragma once

#include <comp_native/math/elementwise.hpp>

#include "support/rows.cuh"

namespace comp::cuda {

namespace detail {

/// One pass, since no sum joins the elements of a row.
template <class T>
struct biased {
  static constexpr bool one_pass = true;
  pointer<const T> from;
  pointer<const float> bias;
  pointer<T> to;
  index width;
  bool relu;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    for (index at = lanes.rank() * N; at < width; at += Lanes::count * N) {
      float v[N], b[N];
      load_all<N, T>(from + (r * width + at), v);
      load_all<N, float>(bias + at, b);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = relu ? native::math::relu{}(v[j] + b[j]) : v[j] + b[j];
      store_all<N, T>(to + (r * width + at), v);
    }
  }
};

}  // namespace detail

template <class T>
void add_bias(stream on, const T* x, const float* bias, T* y, index rows, index width, bool relu) {
  constexpr int N = wide<T>;
  const bool packed = fits<N>(x) && fits<N>(y) && fits<N>(bias);
  for_rows<N>(on, rows, width, packed, detail::biased<T>{x, bias, y, width, relu});
}

}  // namespace comp::cuda
