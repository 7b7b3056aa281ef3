// SPDX-License-Identifier: Apache-2.0
// Softmax, its causal form and log-softmax over the last axis, and their gradients. FP32 inside, rounded once.
#pragma once

#include <comp_native/math/elementwise.hpp>

#include "support/rows.cuh"

namespace comp::cuda {

struct row_exponentials {
  float largest, total;  // total: the sum of exp(x - largest)
};
/// How many of the N elements from `at` on are among the first `seen`.
template <int N>
__device__ __forceinline__ int seen_from(index at, index seen) {
  const index left = seen - at;
  return static_cast<int>(left < 0 ? 0 : left > N ? N : left);
}
/// The elements from the first `some` on count as -infinity.
template <int N>
__device__ __forceinline__ void hide_from(int some, float (&v)[N]) {
  if (some == N) return;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (j >= some) v[j] = -infinity;
  }
}
/// Of the first `seen` elements of a row, for every thread of `lanes`. A row that is held becomes exp(x - largest), or
/// x - largest where `offsets` are asked for; one in memory is read once, with a running maximum.
template <int N, int Held, class T, class Lanes>
__device__ __forceinline__ row_exponentials exponentials(row_of<N, Held, T, Lanes>& row, index seen, bool offsets,
                                                         const Lanes& lanes) {
  using native::math::exp_of;
  float largest = -infinity, total = 0;
  if constexpr (Held > 0) {
    row.each([&](index at, float(&v)[N]) {
      hide_from(seen_from<N>(at, seen), v);
#pragma unroll
      for (int j = 0; j < N; ++j) largest = fmaxf(largest, v[j]);
    });
    largest = lanes.largest(largest);
    row.each([&](index, float(&v)[N]) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float e = exp_of(v[j] - largest);
        v[j] = offsets ? v[j] - largest : e;
        total += e;
      }
    });
    return {largest, lanes.sum(total)};
  } else {
    row.each([&](index at, float(&v)[N]) {
      hide_from(seen_from<N>(at, seen), v);
      float most = largest;
#pragma unroll
      for (int j = 0; j < N; ++j) most = fmaxf(most, v[j]);
      if (most != largest) total *= exp_of(largest - most);
      largest = most;
      const float base = most == -infinity ? 0.0F : most;  // the exponential of -infinity is 0, of its difference NaN
#pragma unroll
      for (int j = 0; j < N; ++j) total += exp_of(v[j] - base);
    });
    const float most = lanes.largest(largest);
    return {most, lanes.sum(most == largest ? total : total * exp_of(largest - most))};
  }
}

namespace detail {

template <class T>
struct softmax_rows {
  pointer<const T> x;
  pointer<T> y;
  index width;
  softmax_kind kind;
  pointer<const std::int32_t> lengths;
  index rows_each;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const index seen = kind == softmax_kind::causal   ? r % width + 1
                       : kind == softmax_kind::padded ? static_cast<index>(lengths[r / rows_each])
                                                      : width;
    row_of<N, Held, T, Lanes> values{x + r * width, width, lanes};
    const bool log = kind == softmax_kind::log;
    const row_exponentials e = exponentials(values, seen, log, lanes);
    const float factor = 1.0F / e.total, log_total = log ? logf(e.total) : 0.0F;
    const pointer<T> to = y + r * width;
    values.each([&](index at, float(&v)[N]) {
      float out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (Held > 0) {
          out[j] = log ? v[j] - log_total : seen > 0 ? v[j] * factor : 0.0F;
        } else {
          const float off = v[j] - e.largest;
          out[j] = log ? off - log_total : j < seen_from<N>(at, seen) ? native::math::exp_of(off) * factor : 0.0F;
        }
      }
      store_all<N, T>(to + at, out);
    });
  }
};

template <class T>
struct softmax_gradient_rows {
  pointer<const T> dy, y;
  pointer<T> dx;
  index width;
  bool log;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    row_of<N, Held, T, Lanes> results{y + r * width, width, lanes};
    const pointer<const T> from = dy + r * width;
    const pointer<T> to = dx + r * width;
    float part = 0;
    results.each([&](index at, float(&v)[N]) {
      float g[N];
      load_all<N, T>(from + at, g);
#pragma unroll
      for (int j = 0; j < N; ++j) part += log ? g[j] : g[j] * v[j];
    });
    const float whole = lanes.sum(part);
    results.each([&](index at, float(&v)[N]) {
      float g[N];
      load_all<N, T>(from + at, g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        g[j] = log ? native::math::log_softmax_gradient(g[j], v[j], whole)
                   : native::math::softmax_gradient(g[j], v[j], whole);
      }
      store_all<N, T>(to + at, g);
    });
  }
};

}  // namespace detail

template <class T>
void softmax(stream on, const T* x, T* y, index rows, index width, const softmax_form& form) {
  constexpr int N = wide<T>;
  for_rows<N>(on, rows, width, fits<N>(x) && fits<N>(y),
              detail::softmax_rows<T>{x, y, width, form.kind, form.lengths, form.rows_each});
}
template <class T>
void softmax_backward(stream on, const T* dy, const T* y, T* dx, index rows, index width, bool log) {
  constexpr int N = wide<T>;
  const bool packed = fits<N>(dy) && fits<N>(y) && fits<N>(dx);
  for_rows<N>(on, rows, width, packed, detail::softmax_gradient_rows<T>{dy, y, dx, width, log});
}

}  // namespace comp::cuda
