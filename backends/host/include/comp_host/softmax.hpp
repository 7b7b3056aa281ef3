// SPDX-License-Identifier: Apache-2.0
// Softmax and log-softmax over the last axis. The causal form is a loop of ours that never looks above the diagonal: a
// mask, the exponentials and the zeros in one pass over memory. The others are oneDNN's.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "context.hpp"
#include "convert.hpp"
#include "transfer.hpp"

namespace comp::host {

/// e^x for x <= 0 and a little above, in a form that loops turn into vector code: off by 2 units in the last place at
/// most. Below -87.3 it is 0; NaN stays NaN. Source: range reduction and polynomial as in Cephes' expf.
COMP_HOST_INLINE float exp_of(float x) {
  const float clamped = x > 88.0F ? 88.0F : (x < -87.3F ? -87.3F : x);
  const float shifted = clamped * 1.44269504F + 12582912.0F;  // 1.5 * 2^23: the integer ends up in the low bits
  const float n = shifted - 12582912.0F;
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const std::uint32_t scale = (__builtin_bit_cast(std::uint32_t, shifted) << 23) + 0x3f800000U;
  const float value = p * __builtin_bit_cast(float, scale);
  return x < -87.3F ? 0.0F : value;
}

namespace detail {

/// y[0..seen) = softmax of x[0..seen), y[seen..width) = 0.
template <class T>
COMP_HOST_INLINE void softmax_row(const T* x, T* y, float* work, std::size_t seen, std::size_t width) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::size_t i = 0; i < seen; ++i) {
    work[i] = load(x[i]);
    largest = work[i] > largest ? work[i] : largest;
  }
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::size_t i = 0; i < seen; ++i) {
    work[i] = exp_of(work[i] - largest);
    total += work[i];
  }
  const float scale = 1.0F / total;
#pragma omp simd
  for (std::size_t i = 0; i < seen; ++i) store(y[i], work[i] * scale);
#pragma omp simd
  for (std::size_t i = seen; i < width; ++i) store(y[i], 0.0F);
}

inline tensor causal_softmax(context& c, const tensor& x) {
  const shape& s = x.shape();
  require<error>(s.size() >= 2 && s[s.size() - 1] == s[s.size() - 2],
                 "softmax of x {}, causal (the last two sizes must be equal): leave the mask out or fix the shape",
                 text(s));
  const tensor in = row_major(c, computable(c, x)), y = c.make(s, in.layout());
  const auto width = static_cast<std::size_t>(s.back()), rows = static_cast<std::size_t>(elements(s)) / width;
  with_operand(in.precision(), [&](auto* storage) {
    using T = std::remove_pointer_t<decltype(storage)>;
    const T* from = in.as<T>();
    T* to = y.as<T>();
    c.run_kernel([&] {
      launch_rows(rows, width, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        std::vector<float> work(width);
        for (std::size_t r = begin; r < end; ++r)
          softmax_row(from + r * width, to + r * width, work.data(), r % width + 1, width);
      });
    });
  });
  return cast(c, y, x.precision());
}

/// softmax or log-softmax (`Forward`) of oneDNN over rows.
template <class Forward>
tensor rows_forward(context& c, operation o, const tensor& x) {
  const tensor in = as_matrix(c, computable(c, x));
  const auto& desc = in.layout()->desc;
  auto& run = c.cached(key{o, in.layout()->id}, [&] {
    const typename Forward::primitive_desc made{{dnnl::prop_kind::forward_training, desc, 1}, c.user_scratch, c.engine};
    return c.made(made, {{DNNL_ARG_SRC, desc}, {DNNL_ARG_DST, desc}});
  });
  const tensor y = c.make(in.layout());
  c.run(run, {{DNNL_ARG_SRC, in.data()}, {DNNL_ARG_DST, y.data()}});
  return reshape(c, cast(c, y, x.precision()), x.shape());
}
template <class Forward, class Backward>
tensor rows_backward(context& c, operation o, const tensor& dy, const tensor& y) {
  require_same("softmax_backward", dy.shape(), y.shape());
  const tensor g = as_matrix(c, computable(c, dy)), at = as_matrix(c, computable(c, cast(c, y, dy.precision())));
  const auto& desc = at.layout()->desc;
  auto& run = c.cached(key{o, at.layout()->id}, [&] {
    const typename Forward::primitive_desc forward{
        {dnnl::prop_kind::forward_training, desc, 1}, c.user_scratch, c.engine};
    const typename Backward::primitive_desc made{{desc, desc, 1}, c.user_scratch, c.engine, forward};
    return c.made(made, {{DNNL_ARG_DST, desc}, {DNNL_ARG_DIFF_DST, desc}, {DNNL_ARG_DIFF_SRC, desc}});
  });
  const tensor dx = c.make(at.layout());
  c.run(run, {{DNNL_ARG_DST, at.data()}, {DNNL_ARG_DIFF_DST, g.data()}, {DNNL_ARG_DIFF_SRC, dx.data()}});
  return reshape(c, cast(c, dx, dy.precision()), dy.shape());
}

}  // namespace detail

/// Over the last axis. causal: x is (...,T,T), and columns beyond the row count as minus infinity.
inline tensor softmax(context& c, const tensor& x, bool causal) {
  require_some("softmax", x.shape());
  if (causal) return detail::causal_softmax(c, x);
  return detail::rows_forward<dnnl::softmax_forward>(c, operation::softmax, x);
}
inline tensor softmax_backward(context& c, const tensor& dy, const tensor& y) {
  return detail::rows_backward<dnnl::softmax_forward, dnnl::softmax_backward>(c, operation::softmax_backward, dy, y);
}
inline tensor log_softmax(context& c, const tensor& x) {
  require_some("log_softmax", x.shape());
  return detail::rows_forward<dnnl::logsoftmax_forward>(c, operation::log_softmax, x);
}
inline tensor log_softmax_backward(context& c, const tensor& dy, const tensor& y) {
  return detail::rows_backward<dnnl::logsoftmax_forward, dnnl::logsoftmax_backward>(c, operation::log_softmax_backward,
                                                                                    dy, y);
}

}  // namespace comp::host
