// SPDX-License-Identifier: Apache-2.0
// Softmax, its masked forms and log-softmax over the last axis, and their gradients. They compute in FP32 and round
// once.
// The masked forms read only the elements that count, and write zeros for the others.
#pragma once

#include <comp_native/math/elementwise.hpp>

#include "support/rows.cuh"

namespace comp::cuda {

/// What a softmax needs of a row.
struct row_exponentials {
  float largest, total;  // total: the sum of exp(x - largest)
};
/// Returns: how many elements of row r count. The division has 32 bits, which rows.cuh allows: one of 64 bits takes as
/// long as a row.
__device__ __forceinline__ index visible_to(index r, index width, softmax_kind kind) {
  return kind == softmax_kind::causal ? static_cast<unsigned>(r) % static_cast<unsigned>(width) + 1 : width;
}
/// Returns: how many of the N elements from `at` on are among the first `visible`.
template <int N, class Place>
__device__ __forceinline__ int visible_from(Place at, Place visible) {
  const Place left = visible - at;
  return static_cast<int>(left < 0 ? 0 : left > N ? N : left);
}
/// Sets the elements behind the first `some` to `hidden`.
template <int N>
__device__ __forceinline__ void hide_from(int some, float (&v)[N], float hidden = -infinity) {
  if (some == N) return;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (j >= some) v[j] = hidden;
  }
}
/// Returns: the largest element and the sum of exponentials of the first `visible` elements of a row, to all `lanes`. A
/// row that is held becomes exp(x - largest), or x - largest for `offsets`. A row in memory is read once, with a
/// running maximum: when that grows, the sum so far is scaled.
template <int N, int Held, class T, class Lanes, bool Partly>
__device__ __forceinline__ row_exponentials exponentials(row_of<N, Held, T, Lanes, Partly>& row, place<Held> visible,
                                                         bool offsets, const Lanes& lanes) {
  using native::math::exp_of;
  float largest = -infinity, total = 0;
  if constexpr (Held > 0) {
    row.each([&](place<Held> at, float(&v)[N]) {
      hide_from(visible_from<N>(at, visible), v);
#pragma unroll
      for (int j = 0; j < N; ++j) largest = fmaxf(largest, v[j]);
    });
    largest = visible > 0 ? lanes.largest(largest) : 0.0F;  // else the difference of two infinities would be NaN
    row.each([&](place<Held>, float(&v)[N]) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float e = exp_of(v[j] - largest);
        v[j] = offsets ? v[j] - largest : e;
        total += e;
      }
    });
    return {largest, lanes.sum(total)};
  } else {
    row.each([&](place<Held> at, float(&v)[N]) {
      hide_from(visible_from<N>(at, visible), v);
      float most = largest;
#pragma unroll
      for (int j = 0; j < N; ++j) most = fmaxf(most, v[j]);
      if (most != largest) total *= exp_of(largest - most);
      largest = most;
      const float base = most == -infinity ? 0.0F : most;  // exp(-infinity - 0) is 0; -infinity - -infinity is NaN
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
  unsigned rows_each;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const auto visible = static_cast<place<Held>>(
        kind == softmax_kind::padded ? lengths[static_cast<unsigned>(r) / rows_each] : visible_to(r, width, kind));
    row_of<N, Held, T, Lanes, true> values{x + r * width, width, visible, lanes};
    const bool log = kind == softmax_kind::log;
    const row_exponentials e = exponentials(values, visible, log, lanes);
    const float factor = visible > 0 ? 1.0F / e.total : 0.0F, log_total = log ? logf(e.total) : 0.0F;
    const pointer<T> to = y + r * width;
    values.each([&](place<Held> at, float(&v)[N]) {
      float out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (Held > 0) {
          out[j] = log ? v[j] - log_total : v[j] * factor;
        } else {
          const float off = v[j] - e.largest;
          out[j] = log ? off - log_total : j < visible_from<N>(at, visible) ? native::math::exp_of(off) * factor : 0.0F;
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
  softmax_kind kind;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const auto visible = static_cast<place<Held>>(visible_to(r, width, kind));
    const bool log = kind == softmax_kind::log;
    row_of<N, Held, T, Lanes, true> results{y + r * width, width, visible, lanes};
    const pointer<const T> from = dy + r * width;
    const pointer<T> to = dx + r * width;
    float part = 0;
    results.each([&](place<Held> at, float(&v)[N]) {
      if (at >= visible) return;
      float g[N];
      load_all<N, T>(from + at, g);
#pragma unroll
      for (int j = 0; j < N; ++j) g[j] = log ? g[j] : g[j] * v[j];
      hide_from(visible_from<N>(at, visible), g, 0);
#pragma unroll
      for (int j = 0; j < N; ++j) part += g[j];
    });
    const float whole = lanes.sum(part);
    results.each([&](place<Held> at, float(&v)[N]) {
      float g[N] = {};
      if (at < visible) {
        load_all<N, T>(from + at, g);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          g[j] = log ? native::math::log_softmax_gradient(g[j], v[j], whole)
                     : native::math::softmax_gradient(g[j], v[j], whole);
        }
        hide_from(visible_from<N>(at, visible), g, 0);
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
              detail::softmax_rows<T>{x, y, width, form.kind, form.lengths, static_cast<unsigned>(form.rows_each)});
}
template <class T>
void softmax_backward(stream on, const T* dy, const T* y, T* dx, index rows, index width, softmax_kind kind) {
  constexpr int N = wide<T>;
  const bool packed = fits<N>(dy) && fits<N>(y) && fits<N>(dx);
  for_rows<N>(on, rows, width, packed, detail::softmax_gradient_rows<T>{dy, y, dx, width, kind});
}

}  // namespace comp::cuda
