// SPDX-License-Identifier: Apache-2.0
// Softmax and log-softmax over the last axis, in one pass over memory for each row. The causal form never reads above
// the diagonal. These are loops of this backend, because oneDNN 2.6 keeps intermediate results of a BF16 softmax in
// BF16, which rounds more than once, and has no mask.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp_native/math/elementwise.hpp>
#include <comp_native/op/softmax.hpp>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "context.hpp"
#include "convert.hpp"
#include "transfer.hpp"

namespace comp::host {

using native::math::exp_of;

namespace detail {

/// Sets y[0..visible) to the softmax of x[0..visible), and y[visible..width) to 0. Loops run to a multiple of 16 if the
/// row is long enough, which vectorises without a remainder; elements beyond `visible` count as minus infinity.
template <class T>
COMP_HOST_INLINE void softmax_row(const T* x, T* y, float* work, std::size_t visible, std::size_t width) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::size_t full = (visible + 15) / 16 * 16, end = full < width ? full : width;
#pragma omp simd
  for (std::size_t i = 0; i < end; ++i) work[i] = load(x[i]);
  for (std::size_t i = visible; i < end; ++i) work[i] = -infinity;
  float largest = -infinity;
#pragma omp simd reduction(max : largest)
  for (std::size_t i = 0; i < end; ++i) largest = work[i] > largest ? work[i] : largest;
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::size_t i = 0; i < end; ++i) {
    work[i] = exp_of(work[i] - largest);
    total += work[i];
  }
  const float scale = 1.0F / total;
#pragma omp simd
  for (std::size_t i = 0; i < end; ++i) store(y[i], work[i] * scale);
  for (std::size_t i = visible; i < end; ++i) store(y[i], 0.0F);
  if (end < width) std::memset(y + end, 0, (width - end) * sizeof(T));
}

/// Sets y to x minus the logarithm of the sum of the exponentials of x.
template <class T>
COMP_HOST_INLINE void log_softmax_row(const T* x, T* y, float* work, std::size_t width) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::size_t i = 0; i < width; ++i) {
    work[i] = load(x[i]);
    largest = work[i] > largest ? work[i] : largest;
  }
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::size_t i = 0; i < width; ++i) total += exp_of(work[i] - largest);
  const float log_total = std::log(total);
#pragma omp simd
  for (std::size_t i = 0; i < width; ++i) store(y[i], (work[i] - largest) - log_total);
}
template <class T>
COMP_HOST_INLINE void softmax_gradient_row(const T* dy, const T* y, T* dx, std::size_t width) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::size_t i = 0; i < width; ++i) dot += load(dy[i]) * load(y[i]);
#pragma omp simd
  for (std::size_t i = 0; i < width; ++i) store(dx[i], native::math::softmax_gradient(load(dy[i]), load(y[i]), dot));
}
template <class T>
COMP_HOST_INLINE void log_softmax_gradient_row(const T* dy, const T* y, T* dx, std::size_t width) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::size_t i = 0; i < width; ++i) total += load(dy[i]);
#pragma omp simd
  for (std::size_t i = 0; i < width; ++i)
    store(dx[i], native::math::log_softmax_gradient(load(dy[i]), load(y[i]), total));
}

enum class softmax_kind : std::uint8_t { full, causal, log };

/// `lengths` says for each element of the first axis how much of its rows counts; null: all.
inline tensor softmax_forward(context& c, softmax_kind kind, const tensor& x, const std::int32_t* lengths = nullptr) {
  const tensor in = row_major(c, computable(c, x)), y = c.make(x.shape(), in.layout());
  const auto width = static_cast<std::size_t>(x.shape().back());
  const std::size_t rows = static_cast<std::size_t>(elements(x.shape())) / width;
  const std::size_t rows_each = rows / static_cast<std::size_t>(x.shape().front());
  with_operand(in.precision(), [&](auto* storage) {
    using T = std::remove_pointer_t<decltype(storage)>;
    const T* from = in.as<T>();
    T* to = y.as<T>();
    c.run_kernel([&] {
      launch_rows(rows, 8 * width, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        std::vector<float> work(width);
        for (std::size_t r = begin; r < end; ++r) {
          const T* row = from + r * width;
          if (kind == softmax_kind::log) {
            log_softmax_row(row, to + r * width, work.data(), width);
          } else {
            const std::size_t visible = lengths ? static_cast<std::size_t>(lengths[r / rows_each])
                                        : kind == softmax_kind::causal ? r % width + 1
                                                                       : width;
            softmax_row(row, to + r * width, work.data(), visible, width);
          }
        }
      });
    });
  });
  return cast(c, y, x.precision());
}
inline tensor softmax_gradient(context& c, softmax_kind kind, const tensor& dy, const tensor& y) {
  require_same("softmax_backward", dy.shape(), y.shape());
  const tensor g = row_major(c, computable(c, dy)), at = row_major(c, computable(c, cast(c, y, dy.precision())));
  const tensor dx = c.make(dy.shape(), at.layout());
  const auto width = static_cast<std::size_t>(y.shape().back());
  with_operand(g.precision(), [&](auto* storage) {
    using T = std::remove_pointer_t<decltype(storage)>;
    const T *gradient = g.as<T>(), *result = at.as<T>();
    T* to = dx.as<T>();
    c.run_kernel([&] {
      launch_rows(static_cast<std::size_t>(elements(y.shape())) / width, 2 * width,
                  [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
                    for (std::size_t r = begin; r < end; ++r) {
                      const std::size_t at = r * width, visible = kind == softmax_kind::causal ? r % width + 1 : width;
                      if (kind == softmax_kind::log) {
                        log_softmax_gradient_row(gradient + at, result + at, to + at, width);
                      } else {
                        softmax_gradient_row(gradient + at, result + at, to + at, visible);
                        std::fill(to + at + visible, to + at + width, T{});
                      }
                    }
                  });
    });
  });
  return cast(c, dx, dy.precision());
}

}  // namespace detail

/// The softmax over the last axis. With `causal`, x is (...,T,T) and columns beyond the row count as minus infinity.
inline tensor softmax(context& c, const tensor& x, bool causal) {
  require_some("softmax", x.shape());
  if (causal) native::require_causal(x.shape());
  return detail::softmax_forward(c, causal ? detail::softmax_kind::causal : detail::softmax_kind::full, x);
}
/// Checks the lengths of the examples of x (B,...,T). Throws: error.
inline void require_lengths(const shape& x, const indices& lengths) {
  const auto all = lengths.values();
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  native::require_lengths(x, std::ssize(all), all.empty() ? 0 : *least, all.empty() ? 0 : *most);
}
/// The softmax over the first lengths[b] columns of each example of x (B,...,T). The other columns get 0, and so does a
/// row of length 0.
inline tensor padded_softmax(context& c, const tensor& x, const indices& lengths) {
  require_some("softmax", x.shape());
  require_lengths(x.shape(), lengths);
  return detail::softmax_forward(c, detail::softmax_kind::full, x, lengths.values().data());
}
inline tensor softmax_backward(context& c, const tensor& dy, const tensor& y, bool causal) {
  if (causal) native::require_causal(y.shape());
  return detail::softmax_gradient(c, causal ? detail::softmax_kind::causal : detail::softmax_kind::full, dy, y);
}
inline tensor log_softmax(context& c, const tensor& x) {
  require_some("log_softmax", x.shape());
  return detail::softmax_forward(c, detail::softmax_kind::log, x);
}
inline tensor log_softmax_backward(context& c, const tensor& dy, const tensor& y) {
  return detail::softmax_gradient(c, detail::softmax_kind::log, dy, y);
}

}  // namespace comp::host
