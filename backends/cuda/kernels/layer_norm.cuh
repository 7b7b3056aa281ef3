// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last axis, forward and backward. Statistics, scale and shift are FP32. A second pass
// takes the variance around the mean, since the difference of two large sums would lose bits.
// For residual connections the forward can also compute the sum that it reads, and the backward can add another
// gradient to its result. __fadd_rn keeps the compiler from contracting those additions with a product before them, so
// that they have the bits of separate kernels.
#pragma once

#include "dropout.cuh"
#include "reductions.cuh"
#include "support/rows.cuh"

namespace comp::cuda {

namespace detail {

template <class T>
struct layer_norm_rows {
  pointer<const T> x;
  pointer<const float> gamma, beta;
  pointer<T> y;
  pointer<float> mean, inverse_deviation;
  index width;
  float eps;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    row_of<N, Held, T, Lanes> values{x + r * width, width, lanes};
    normalise<N>(r, values, lanes);
  }
  template <int N, class Row, class Lanes>
  __device__ __forceinline__ void normalise(index r, Row& values, const Lanes& lanes) const {
    float part = 0, squares = 0;
    values.each([&](index, float(&v)[N]) {
#pragma unroll
      for (int j = 0; j < N; ++j) part += v[j];
    });
    const float middle = lanes.sum(part) / static_cast<float>(width);
    values.each([&](index, float(&v)[N]) {
#pragma unroll
      for (int j = 0; j < N; ++j) squares += (v[j] - middle) * (v[j] - middle);
    });
    const float scale = 1.0F / sqrtf(lanes.sum(squares) / static_cast<float>(width) + eps);
    if (lanes.rank() == 0) {
      mean[r] = middle;
      inverse_deviation[r] = scale;
    }
    const pointer<T> to = y + r * width;
    values.each([&](index at, float(&v)[N]) {
      float out[N], g[N], b[N];
      load_all<N, float>(gamma + at, g);
      load_all<N, float>(beta + at, b);
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] = (v[j] - middle) * scale * g[j] + b[j];
      store_all<N, T>(to + at, out);
    });
  }
};

template <class T>
struct layer_norm_sum_rows {
  layer_norm_rows<T> norm;  // the layer norm of x, which is the sum
  pointer<T> x;
  pointer<const T> from, other;
  bool drops;
  native::math::dropout_mask mask;
  pointer<const std::uint64_t> draws;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const index width = norm.width, start = r * width;
    const native::math::dropout_mask now = mask_of(mask, draws);
    row_of<N, Held, T, Lanes> values{from + start, width, lanes};
    values.each([&](index at, float(&v)[N]) {
      float o[N];
      if (drops) {
        drop(v, now, start + at);
        as_stored(v);
      }
      load_all<N, T>(other + (start + at), o);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = __fadd_rn(v[j], o[j]);
      as_stored(v);
      store_all<N, T>(x + (start + at), v);
    });
    if constexpr (Held > 0) {
      norm.template normalise<N>(r, values, lanes);
    } else {
      norm.template row<N, Held>(r, lanes);  // reads x again; each thread reads what it has written itself
    }
  }

 private:
  template <int N>
  __device__ __forceinline__ static void as_stored(float (&v)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = widen<T>(narrow<T>(v[j]));
  }
};

template <class T>
struct layer_norm_gradient_rows {
  pointer<const T> dy, x;
  pointer<const float> gamma, mean, inverse_deviation;
  pointer<const T> addend;
  pointer<T> dx;
  index width;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    row_of<N, Held, T, Lanes> values{x + r * width, width, lanes};
    const pointer<const T> from = dy + r * width;
    const float middle = mean[r], scale = inverse_deviation[r];
    float part = 0, along = 0;
    values.each([&](index at, float(&v)[N]) {
      float d[N], g[N];
      load_all<N, T>(from + at, d);
      load_all<N, float>(gamma + at, g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        part += d[j] * g[j];
        along += d[j] * g[j] * ((v[j] - middle) * scale);
      }
    });
    const float average = lanes.sum(part) / static_cast<float>(width);
    const float slope = lanes.sum(along) / static_cast<float>(width);
    const pointer<T> to = dx + r * width;
    values.each([&](index at, float(&v)[N]) {
      float d[N], g[N];
      load_all<N, T>(from + at, d);
      load_all<N, float>(gamma + at, g);
#pragma unroll
      for (int j = 0; j < N; ++j) d[j] = scale * (d[j] * g[j] - average - (v[j] - middle) * scale * slope);
      if (addend) {
        float more[N];
        load_all<N, T>(addend + (r * width + at), more);
#pragma unroll
        for (int j = 0; j < N; ++j) d[j] = __fadd_rn(widen<T>(narrow<T>(d[j])), more[j]);
      }
      store_all<N, T>(to + at, d);
    });
  }
};

template <class T>
struct layer_norm_columns {
  pointer<const T> dy, x;
  pointer<const float> mean, inverse_deviation;
  index width;
  __device__ __forceinline__ void add(index r, index column, float (&part)[2]) const {
    const float d = widen<T>(dy[r * width + column]);
    part[0] += d * (widen<T>(x[r * width + column]) - mean[r]) * inverse_deviation[r];
    part[1] += d;
  }
};

}  // namespace detail

template <class T>
void layer_norm(stream on, const T* x, const float* gamma, const float* beta, T* y, float* mean,
                float* inverse_deviation, index rows, index width, double eps) {
  constexpr int N = wide<T>;
  const bool packed = fits<N>(x) && fits<N>(y) && fits<N>(gamma) && fits<N>(beta);
  for_rows<N>(on, rows, width, packed,
              detail::layer_norm_rows<T>{x, gamma, beta, y, mean, inverse_deviation, width, static_cast<float>(eps)});
}
template <class T>
void layer_norm(stream on, const layer_norm_sum<T>& of, T* x, const float* gamma, const float* beta, T* y, float* mean,
                float* inverse_deviation, index rows, index width, double eps) {
  constexpr int N = wide<T>;
  const bool packed =
      fits<N>(of.from) && fits<N>(of.other) && fits<N>(x) && fits<N>(y) && fits<N>(gamma) && fits<N>(beta);
  const detail::layer_norm_rows<T> norm{x, gamma, beta, y, mean, inverse_deviation, width, static_cast<float>(eps)};
  for_rows<N>(on, rows, width, packed,
              detail::layer_norm_sum_rows<T>{norm, x, of.from, of.other, of.drops, of.mask, of.draws});
}
template <class T>
void layer_norm_backward(stream on, const T* dy, const T* x, const float* gamma, const float* mean,
                         const float* inverse_deviation, T* dx, index rows, index width, const T* addend) {
  constexpr int N = wide<T>;
  const bool packed = fits<N>(dy) && fits<N>(x) && fits<N>(dx) && fits<N>(gamma) && fits<N>(addend);
  for_rows<N>(on, rows, width, packed,
              detail::layer_norm_gradient_rows<T>{dy, x, gamma, mean, inverse_deviation, addend, dx, width});
}
template <class T>
void layer_norm_parameters_backward(stream on, const T* dy, const T* x, const float* mean,
                                    const float* inverse_deviation, float* d_gamma, float* d_beta, index rows,
                                    index width, bool adds, float* scratch) {
  const detail::layer_norm_columns<T> terms{dy, x, mean, inverse_deviation, width};
  column_totals<2>(on, rows, width, terms, d_gamma, d_beta, adds, scratch);
}

}  // namespace comp::cuda
