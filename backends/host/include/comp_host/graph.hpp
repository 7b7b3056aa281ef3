// SPDX-License-Identifier: Apache-2.0
// Products with sparse matrices, and weighted sums along the edges of a graph. oneDNN has no such products, so these
// are loops. Sums are FP32 and in a fixed order, so that results do not depend on the number of threads.
#pragma once

#include <array>
#include <comp_native/op/graph.hpp>
#include <cstdint>
#include <type_traits>

#include "csr.hpp"
#include "parameter.hpp"
#include "row_sums.hpp"

namespace comp::host {

namespace detail {

/// Calls f with `width` as a constant for the widths that graph networks commonly have, so that their loops are
/// unrolled; with 0 for any other.
template <int W>
using at_width = std::integral_constant<int, W>;
void with_width(std::size_t width, auto f) {
  if (width == 8) return f(at_width<8>{});
  if (width == 16) return f(at_width<16>{});
  if (width == 64) return f(at_width<64>{});
  f(at_width<0>{});
}

/// Computes the sums of share * x over the elements of a line, for heads of W columns (W = 0: of `width` columns).
template <class S, class T>
struct line_terms {
  const S* share;  // (E,heads)
  const T* x;      // (.,heads,width)
  const std::int32_t *other, *edge;
  std::size_t heads, width;

  template <int W, class Y>
  COMP_HOST_INLINE void sum(std::size_t first, std::size_t end, const float* bias, Y* y) const {
    constexpr std::size_t block = W == 0 ? 64 : W;
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::size_t at = 0; at < width; at += block) {
        const std::size_t some = W != 0 || width - at > block ? block : width - at, place = head * width + at;
        float total[block];
        for (std::size_t j = 0; j < (W == 0 ? some : block); ++j) total[j] = bias ? bias[place + j] : 0.0F;
        for (std::size_t k = first; k < end; ++k) {
          const float part = load(share[(edge ? static_cast<std::size_t>(edge[k]) : k) * heads + head]);
          const T* from = x + static_cast<std::size_t>(other[k]) * heads * width + place;
#pragma omp simd
          for (std::size_t j = 0; j < (W == 0 ? some : block); ++j) total[j] += part * load(from[j]);
        }
#pragma omp simd
        for (std::size_t j = 0; j < (W == 0 ? some : block); ++j) store(y[place + j], total[j]);
      }
    }
  }
};

/// Sets y (lines,heads*width) to the bias plus the sums of share (E,heads) * x[other] over the elements of each line.
template <class S, class T, class Y>
void weighted_lines(context& c, const sparse_side& over, bool by_edge, const S* share, const T* x, std::size_t heads,
                    std::size_t width, const float* bias, Y* y) {
  const line_terms<S, T> terms{
      share, x, over.other.data(), by_edge && !over.edge.empty() ? over.edge.data() : nullptr, heads, width};
  const std::int32_t* begin = over.begin.data();
  c.run_kernel([&] {
    with_width(width, [&](auto w) {
      launch_lines(over, heads * width, [=](std::size_t from, std::size_t to) COMP_HOST_KERNEL {
        for (std::size_t line = from; line < to; ++line) {
          terms.template sum<decltype(w)::value>(static_cast<std::size_t>(begin[line]),
                                                 static_cast<std::size_t>(begin[line + 1]), bias,
                                                 y + line * heads * width);
        }
      });
    });
  });
}

template <int W, class A, class B>
COMP_HOST_INLINE float dot(const A* a, const B* b, std::size_t width) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::size_t j = 0; j < (W == 0 ? width : W); ++j) total += load(a[j]) * load(b[j]);
  return total;
}

/// Sets y (E,heads) to the dot products of a[row] and b[column], both (.,heads,width), for each element of the matrix.
template <class T, class Y>
void edge_products(context& c, const sparse_matrix& m, const T* a, const T* b, std::size_t heads, std::size_t width,
                   Y* y) {
  const std::int32_t *begin = m.by_row.begin.data(), *other = m.by_row.other.data();
  c.run_kernel([&] {
    with_width(width, [&](auto w) {
      launch_lines(m.by_row, heads * width, [=](std::size_t from, std::size_t to) COMP_HOST_KERNEL {
        for (std::size_t line = from; line < to; ++line) {
          for (auto k = static_cast<std::size_t>(begin[line]); k < static_cast<std::size_t>(begin[line + 1]); ++k) {
            for (std::size_t head = 0; head < heads; ++head) {
              const T* right = b + (static_cast<std::size_t>(other[k]) * heads + head) * width;
              store(y[k * heads + head], dot<decltype(w)::value>(a + (line * heads + head) * width, right, width));
            }
          }
        }
      });
    });
  });
}

/// Returns `t` row-major and in a precision that loops compute on.
inline tensor rows_of(context& c, const tensor& t) { return row_major(c, computable(c, t)); }
inline tensor rows_like(context& c, const tensor& t, const tensor& like) {
  return rows_of(c, cast(c, t, like.precision()));
}
/// Returns the weights (K,N) of a product, row-major and in the precision of `like`.
template <class T>
const T* rows_of_weights(context& c, parameter& w, const tensor& like, precision as) {
  return static_cast<const T*>(weights(c, w, c.layouts.plain(w.value.layout()->extents, like.precision()), as));
}

}  // namespace detail

/// A linear layer on sparse features: the matrix m, whose elements are `values` (1,E), times w (K,U). Returns: (N,U).
inline tensor sparse_linear(context& c, const sparse_matrix& m, const tensor& values, parameter& w) {
  const tensor x = detail::rows_of(c, values);
  const tensor y = c.make_plain({m.rows, w.extents[1]}, x.precision());
  with_operand(x.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    detail::weighted_lines(c, m.by_row, true, x.as<const T>(), detail::rows_of_weights<T>(c, w, x, values.precision()),
                           1, static_cast<std::size_t>(w.extents[1]), nullptr, y.as<T>());
  });
  return cast(c, y, values.precision());
}
/// Adds the gradient of w. Returns: the gradient of the values; empty unless `need_dx`.
inline tensor sparse_linear_backward(context& c, const sparse_matrix& m, const tensor& dy, const tensor& values,
                                     parameter& w, bool need_dx) {
  native::require_nodes("sparse_linear_backward", "dy", dy.shape(), m.rows);
  const tensor g = detail::rows_of(c, dy), x = detail::rows_like(c, values, dy);
  const tensor dx = need_dx ? c.make_plain(values.shape(), g.precision()) : tensor{};
  const auto units = static_cast<std::size_t>(w.extents[1]);
  with_operand(g.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    if (w.trainable) {
      const tensor dw = gradient_target(c, w, c.layouts.plain(w.extents, precision::fp32));
      detail::weighted_lines(c, m.by_column, true, x.as<const T>(), g.as<const T>(), 1, units, nullptr, dw.as<float>());
      add_gradient(c, w, dw);
    }
    if (!need_dx) return;
    detail::edge_products(c, m, g.as<const T>(), detail::rows_of_weights<T>(c, w, g, dy.precision()), 1, units,
                          dx.as<T>());
  });
  return need_dx ? cast(c, dx, dy.precision()) : tensor{};
}

/// The sparse matrix m times x (M,K), plus b (K) if it is not null. Returns: (N,K).
inline tensor spmm(context& c, const sparse_matrix& m, const tensor& x, parameter* b) {
  native::require_nodes("spmm", "x", x.shape(), m.columns);
  const tensor in = detail::rows_of(c, x), y = c.make_plain({m.rows, x.shape()[1]}, in.precision());
  with_operand(in.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    detail::weighted_lines(c, m.by_row, false, m.by_row.value.data(), in.as<const T>(), 1,
                           static_cast<std::size_t>(x.shape()[1]), b ? plain_values(c, *b) : nullptr, y.as<T>());
  });
  return cast(c, y, x.precision());
}
inline tensor spmm_backward(context& c, const sparse_matrix& m, const tensor& dy, parameter* b, bool need_dx) {
  native::require_nodes("spmm_backward", "dy", dy.shape(), m.rows);
  const tensor g = detail::rows_of(c, dy);
  if (b) detail::add_bias_gradient(c, g, *b);
  if (!need_dx) return {};
  const tensor dx = c.make_plain({m.columns, dy.shape()[1]}, g.precision());
  with_operand(g.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    detail::weighted_lines(c, m.by_column, false, m.by_column.value.data(), g.as<const T>(), 1,
                           static_cast<std::size_t>(dy.shape()[1]), nullptr, dx.as<T>());
  });
  return cast(c, dx, dy.precision());
}

/// For each node and head the sum of x over its incoming edges, weighed by `share` (E,H). x is (M,H*D), b is (H*D) or
/// null. Returns: (N,H*D).
inline tensor weighted_sum(context& c, const sparse_matrix& m, const tensor& share, const tensor& x, parameter* b) {
  native::require_edges("weighted_sum", m.elements(), share.shape());
  native::require_nodes("weighted_sum", "x", x.shape(), m.columns);
  native::require_heads("weighted_sum", share.shape(), x.shape());
  const tensor part = detail::rows_of(c, share), in = detail::rows_like(c, x, share);
  const tensor y = c.make_plain({m.rows, x.shape()[1]}, part.precision());
  const auto heads = static_cast<std::size_t>(share.shape()[1]), width = static_cast<std::size_t>(x.shape()[1]) / heads;
  with_operand(part.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    detail::weighted_lines(c, m.by_row, true, part.as<const T>(), in.as<const T>(), heads, width,
                           b ? plain_values(c, *b) : nullptr, y.as<T>());
  });
  return cast(c, y, share.precision());
}
/// Adds the gradient of b. Returns: the gradients of share and x.
inline std::array<tensor, 2> weighted_sum_backward(context& c, const sparse_matrix& m, const tensor& dy,
                                                   const tensor& share, const tensor& x, parameter* b) {
  native::require_nodes("weighted_sum_backward", "dy", dy.shape(), m.rows);
  const tensor g = detail::rows_of(c, dy), part = detail::rows_like(c, share, dy), in = detail::rows_like(c, x, dy);
  if (b) detail::add_bias_gradient(c, g, *b);
  const tensor d_share = c.make_plain(share.shape(), g.precision()), dx = c.make_plain(x.shape(), g.precision());
  const auto heads = static_cast<std::size_t>(share.shape()[1]), width = static_cast<std::size_t>(x.shape()[1]) / heads;
  with_operand(g.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    detail::edge_products(c, m, g.as<const T>(), in.as<const T>(), heads, width, d_share.as<T>());
    detail::weighted_lines(c, m.by_column, true, part.as<const T>(), g.as<const T>(), heads, width, nullptr,
                           dx.as<T>());
  });
  return {cast(c, d_share, dy.precision()), cast(c, dx, dy.precision())};
}

}  // namespace comp::host
