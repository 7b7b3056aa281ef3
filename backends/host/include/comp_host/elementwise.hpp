// SPDX-License-Identifier: Apache-2.0
// Activations, sums and products of tensors, in whatever layout they come.
// ReLU, ELU, sums and products are loops of this backend. oneDNN's ReLU turns NaN into 0, which would hide that a
// training has failed, and its binary primitives round to BF16 after each of several terms. Padding between elements
// stays zero in all of them.
#pragma once

#include <algorithm>
#include <comp_native/device.hpp>
#include <comp_native/math/elementwise.hpp>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "context.hpp"
#include "convert.hpp"
#include "transfer.hpp"

namespace comp::host {

using native::activation;

namespace detail {

inline tensor without_gaps(context& c, const tensor& t) {
  return t.layout()->dense ? t : placed(c, t, c.layouts.plain(t.layout()->extents, t.precision()));
}
/// Returns `t` in a layout and a precision in which a loop may run over everything that is stored.
inline tensor loopable(context& c, const tensor& t) { return without_gaps(c, computable(c, t)); }
/// Returns `t` in the precision and the layout of `like`. Requires: `like` is dense.
inline tensor beside(context& c, const tensor& t, const tensor& like) {
  tensor same = cast(c, t, like.precision());
  if (same.layout()->extents != like.layout()->extents) same = reshape(c, same, like.layout()->extents);
  return placed(c, same, like.layout());
}
/// Returns f(a[i], b[i]) for everything that is stored. Requires: a and b have the same layout.
tensor combined(context& c, const tensor& a, const tensor& b, auto f) {
  const tensor y = c.make(a.shape(), a.layout());
  with_operand(a.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    const T *lefts = a.as<T>(), *rights = b.as<T>();
    T* results = y.as<T>();
    c.run_kernel([&] {
      launch(a.layout()->stored, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        const T *left = lefts, *right = rights;
        T* to = results;
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) store(to[i], f(load(left[i]), load(right[i])));
      });
    });
  });
  return y;
}

/// ReLU and its gradient. They only need the sign and so work on the bits of any format, without widening BF16 and
/// FP16. NaN passes through both.
template <bool Gradient, class Bits>
tensor rectified(context& c, const tensor& taken, const tensor& deciding) {
  const tensor y = c.make(taken.shape(), taken.layout());
  const auto *values = taken.as<Bits>(), *signs = deciding.as<Bits>();
  auto* results = y.as<Bits>();
  const auto infinity = static_cast<Bits>(sizeof(Bits) == 4                      ? 0x7f800000
                                          : taken.precision() == precision::bf16 ? 0x7f80
                                                                                 : 0x7c00);
  c.run_kernel([&] {
    launch(taken.layout()->stored, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
      const Bits *from = values, *sign = signs, largest = infinity;
      Bits* to = results;
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) {
        const Bits nan = (sign[i] & std::numeric_limits<Bits>::max()) > largest ? Bits{-1} : Bits{0};
        const Bits positive = sign[i] > 0 ? Bits{-1} : Bits{0};
        if constexpr (Gradient) {
          to[i] = static_cast<Bits>((from[i] & positive & ~nan) | (sign[i] & nan));
        } else {
          to[i] = static_cast<Bits>(from[i] & (positive | nan));
        }
      }
    });
  });
  return y;
}
template <bool Gradient>
tensor rectify(context& c, const tensor& taken, const tensor& deciding) {
  if (taken.precision() == precision::fp32) return rectified<Gradient, std::int32_t>(c, taken, deciding);
  return rectified<Gradient, std::int16_t>(c, taken, deciding);
}

/// Returns oneDNN's name for an activation; `undef` for those that loops compute. The backward reads the result, except
/// that of both GELUs, which needs the input.
inline dnnl::algorithm algorithm_of(activation a, bool backward) {
  using alg = dnnl::algorithm;
  switch (a) {
    case activation::relu:
    case activation::elu:
      break;
    case activation::gelu:
      return alg::eltwise_gelu_erf;
    case activation::gelu_tanh:
      return alg::eltwise_gelu_tanh;
    case activation::tanh:
      return backward ? alg::eltwise_tanh_use_dst_for_bwd : alg::eltwise_tanh;
    case activation::sigmoid:
      return backward ? alg::eltwise_logistic_use_dst_for_bwd : alg::eltwise_logistic;
    case activation::leaky_relu:
      return backward ? alg::eltwise_relu_use_dst_for_bwd : alg::eltwise_relu;
  }
  return alg::undef;
}
inline float slope_of(activation a) { return a == activation::leaky_relu ? native::leaky_slope : 0.0F; }

}  // namespace detail

inline tensor activate(context& c, activation a, const tensor& x) {
  require_some("activate", x.shape());
  if (a == activation::relu) {
    const tensor dense = detail::without_gaps(c, x);
    return detail::rectify<false>(c, dense, dense);
  }
  const tensor in = detail::loopable(c, x);
  if (a == activation::elu) {
    const native::math::elu elu;
    return cast(c, detail::combined(c, in, in, [=](float at, float) { return elu(at); }), x.precision());
  }
  auto& run = c.cached(key{operation::activate, a, in.layout()->id}, [&] {
    const auto& desc = in.layout()->desc;
    const auto pd = c.described<dnnl::eltwise_forward>(
        dnnl::prop_kind::forward_training, detail::algorithm_of(a, false), desc, desc, detail::slope_of(a), 0.0F);
    return c.make_primitive(pd, {{DNNL_ARG_SRC, desc}, {DNNL_ARG_DST, desc}});
  });
  const tensor y = c.make(in.shape(), in.layout());
  c.run(run, {{DNNL_ARG_SRC, in.data()}, {DNNL_ARG_DST, y.data()}});
  return cast(c, y, x.precision());
}

/// Returns: the gradient of x. x and y are the input and the result of activate().
inline tensor activate_backward(context& c, activation a, const tensor& dy, const tensor& x, const tensor& y) {
  const bool reads_input = traits(a).backward_reads_input;
  const tensor& known = reads_input ? x : y;
  require_same("activate_backward", dy.shape(), known.shape());
  if (a == activation::relu) {
    const tensor decides = detail::without_gaps(c, cast(c, known, dy.precision()));
    return detail::rectify<true>(c, detail::beside(c, dy, decides), decides);
  }
  const tensor at = detail::loopable(c, cast(c, known, dy.precision()));
  const tensor g = detail::beside(c, dy, at);
  if (a == activation::elu) {
    const native::math::elu elu;
    const auto gradient = [=](float d, float result) { return elu.backward(d, result, result); };
    return cast(c, detail::combined(c, g, at, gradient), dy.precision());
  }
  auto& run = c.cached(key{operation::activate_backward, a, at.layout()->id}, [&] {
    const auto& desc = at.layout()->desc;
    const auto forward_kind = detail::algorithm_of(a, true);
    const auto forward = c.described<dnnl::eltwise_forward>(dnnl::prop_kind::forward_training, forward_kind, desc, desc,
                                                            detail::slope_of(a), 0.0F);
    const auto pd = c.described_backward<dnnl::eltwise_backward>(forward, forward_kind, desc, desc, desc,
                                                                 detail::slope_of(a), 0.0F);
    return c.make_primitive(
        pd, {{reads_input ? DNNL_ARG_SRC : DNNL_ARG_DST, desc}, {DNNL_ARG_DIFF_DST, desc}, {DNNL_ARG_DIFF_SRC, desc}});
  });
  const tensor dx = c.make(at.shape(), at.layout());
  c.run(run, {{reads_input ? DNNL_ARG_SRC : DNNL_ARG_DST, at.data()},
              {DNNL_ARG_DIFF_DST, g.data()},
              {DNNL_ARG_DIFF_SRC, dx.data()}});
  return cast(c, dx, dy.precision());
}

/// Add and multiply element by element; b is cast to the precision of a.
inline tensor add(context& c, const tensor& a, const tensor& b) {
  require_same("add", a.shape(), b.shape());
  const tensor left = detail::loopable(c, a);
  return cast(c, detail::combined(c, left, detail::beside(c, b, left), native::math::plus{}), a.precision());
}
inline tensor mul(context& c, const tensor& a, const tensor& b) {
  require_same("mul", a.shape(), b.shape());
  const tensor left = detail::loopable(c, a);
  return cast(c, detail::combined(c, left, detail::beside(c, b, left), native::math::times{}), a.precision());
}

/// Returns the sum of all terms, computed in FP32 and rounded once to the precision of the first.
inline tensor sum(context& c, std::span<const tensor> terms) {
  require<error>(!terms.empty(), "sum of {} tensors (there is nothing to add): give at least one", terms.size());
  for (const tensor& t : terms) require_same("sum", t.shape(), terms[0].shape());
  if (terms.size() == 1) return terms[0];
  const precision to_precision = terms[0].precision();
  const bool alike = std::ranges::all_of(terms, [&](const tensor& t) { return t.precision() == to_precision; });
  const tensor first = detail::loopable(c, alike ? terms[0] : cast(c, terms[0], precision::fp32));
  std::vector<tensor> all{first};
  for (const tensor& t : terms.subspan(1)) all.push_back(detail::beside(c, t, first));
  const tensor y = c.make(first.shape(), first.layout());
  with_operand(first.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    T* to = y.as<T>();
    c.run_kernel([&] {
      launch(first.layout()->stored, [&all, to](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        for (std::size_t from = begin; from < end; from += 256) {
          const std::size_t some = end - from < 256 ? end - from : 256;
          float total[256] = {};
          for (const tensor& t : all) {
            const T* term = t.as<T>() + from;
#pragma omp simd
            for (std::size_t i = 0; i < some; ++i) total[i] += load(term[i]);
          }
#pragma omp simd
          for (std::size_t i = 0; i < some; ++i) store(to[from + i], total[i]);
        }
      });
    });
  });
  return cast(c, y, to_precision);
}

}  // namespace comp::host
