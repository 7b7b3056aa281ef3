// SPDX-License-Identifier: Apache-2.0
// The part of graph attention that works on edges: a score for each edge and head, and the softmax of the scores over
// the edges that enter a node.
#pragma once

#include <comp_native/math/elementwise.hpp>
#include <cstdint>
#include <limits>
#include <vector>

#include "graph.hpp"

namespace comp::host {

namespace detail {

/// Sets y (N,heads) to the dot products of the heads of each row of x (N,heads,width) with those of `by` (heads,width).
template <class T>
void head_products(context& c, const T* x, const float* by, std::size_t nodes, std::size_t heads, std::size_t width,
                   float* y) {
  c.run_kernel([&] {
    with_width(width, [&](auto w) {
      launch_rows(nodes, heads * width, [=](std::size_t from, std::size_t to) COMP_HOST_KERNEL {
        for (std::size_t r = from; r < to; ++r) {
          for (std::size_t head = 0; head < heads; ++head) {
            const std::size_t at = r * heads + head;
            y[at] = dot<decltype(w)::value>(x + at * width, by + head * width, width);
          }
        }
      });
    });
  });
}

/// Sums the gradients of each node's term in the scores of its edges into d_own (lines,heads). The term of the node at
/// one end is in `own`, that of the other end in `other_end`.
template <class T>
void score_gradient(context& c, const sparse_side& over, const T* dy, const float* own, const float* other_end,
                    std::size_t heads, float slope, float* d_own) {
  const std::int32_t *begin = over.begin.data(), *other = over.other.data();
  const std::int32_t* edge = over.edge.empty() ? nullptr : over.edge.data();
  c.run_kernel([&] {
    launch_lines(over, 4 * heads, [=](std::size_t from, std::size_t to) COMP_HOST_KERNEL {
      for (std::size_t line = from; line < to; ++line) {
        const float* mine = own + line * heads;
        float* total = d_own + line * heads;
        for (std::size_t head = 0; head < heads; ++head) total[head] = 0;
        for (auto k = static_cast<std::size_t>(begin[line]); k < static_cast<std::size_t>(begin[line + 1]); ++k) {
          const float* theirs = other_end + static_cast<std::size_t>(other[k]) * heads;
          const T* d = dy + (edge ? static_cast<std::size_t>(edge[k]) : k) * heads;
#pragma omp simd
          for (std::size_t head = 0; head < heads; ++head)
            total[head] += load(d[head]) * (mine[head] + theirs[head] > 0 ? 1.0F : slope);
        }
      }
    });
  });
}

/// The sizes of edge_scores.
struct score_sizes {
  std::size_t nodes, heads, width;
  score_sizes(const tensor& x, const parameter& by)
      : nodes{static_cast<std::size_t>(x.shape()[0])},
        heads{static_cast<std::size_t>(by.extents[1])},
        width{static_cast<std::size_t>(by.extents[2])} {}
};

}  // namespace detail

/// The score of an edge is the leaky ReLU of a term of its source node plus a term of its target node; the terms are
/// dot products of the node's features x (N,H*D) with `source` and `target` (1,H,D).
/// Returns: (E,H); saved are the terms of all nodes, in FP32.
inline native::with_saved<tensor> edge_scores(context& c, const sparse_matrix& m, const tensor& x, parameter& source,
                                              parameter& target, double slope) {
  native::require_nodes("edge_scores", "x", x.shape(), m.columns);
  native::require_nodes("edge_scores", "x", x.shape(), m.rows);
  const detail::score_sizes s{x, source};
  const tensor in = detail::rows_of(c, x);
  const shape of_nodes{m.rows, source.extents[1]};
  const tensor from = c.make_plain(of_nodes), to = c.make_plain(of_nodes);
  const tensor y = c.make_plain({m.elements(), source.extents[1]}, in.precision());
  with_operand(in.precision(), [&](auto* storage) {
    using T = std::remove_pointer_t<decltype(storage)>;
    detail::head_products(c, in.as<const T>(), plain_values(c, source), s.nodes, s.heads, s.width, from.as<float>());
    detail::head_products(c, in.as<const T>(), plain_values(c, target), s.nodes, s.heads, s.width, to.as<float>());
    const float *sources = from.as<float>(), *targets = to.as<float>(), rate = static_cast<float>(slope);
    const std::int32_t *begin = m.by_row.begin.data(), *other = m.by_row.other.data();
    T* scores = y.as<T>();
    c.run_kernel([&] {
      launch_lines(m.by_row, 2 * s.heads, [=](std::size_t first, std::size_t end) COMP_HOST_KERNEL {
        for (std::size_t line = first; line < end; ++line) {
          const float* mine = targets + line * s.heads;
          for (auto k = static_cast<std::size_t>(begin[line]); k < static_cast<std::size_t>(begin[line + 1]); ++k) {
            const float* theirs = sources + static_cast<std::size_t>(other[k]) * s.heads;
            T* score = scores + k * s.heads;
#pragma omp simd
            for (std::size_t head = 0; head < s.heads; ++head) {
              const float sum = mine[head] + theirs[head];
              store(score[head], sum > 0 ? sum : sum * rate);
            }
          }
        }
      });
    });
  });
  return {cast(c, y, x.precision()), {from, to}};
}
/// Adds the gradients of source and target. Returns: the gradient of x.
inline tensor edge_scores_backward(context& c, const sparse_matrix& m, const tensor& dy, const tensor& x,
                                   const std::vector<tensor>& saved, parameter& source, parameter& target,
                                   double slope) {
  native::require_edges("edge_scores_backward", m.elements(), dy.shape());
  const detail::score_sizes s{x, source};
  const tensor g = detail::rows_of(c, dy), in = detail::rows_like(c, x, dy);
  const tensor d_from = c.make_plain(saved[0].shape()), d_to = c.make_plain(saved[1].shape());
  const tensor dx = c.make_plain(x.shape(), g.precision());
  with_operand(g.precision(), [&](auto* storage) {
    using T = std::remove_pointer_t<decltype(storage)>;
    const float *sources = saved[0].as<float>(), *targets = saved[1].as<float>(), rate = static_cast<float>(slope);
    float *d_sources = d_from.as<float>(), *d_targets = d_to.as<float>();
    detail::score_gradient(c, m.by_column, g.as<const T>(), sources, targets, s.heads, rate, d_sources);
    detail::score_gradient(c, m.by_row, g.as<const T>(), targets, sources, s.heads, rate, d_targets);
    const float *by_source = plain_values(c, source), *by_target = plain_values(c, target);
    T* to = dx.as<T>();
    c.run_kernel([&] {
      launch_rows(s.nodes * s.heads, 2 * s.width, [=](std::size_t first, std::size_t end) COMP_HOST_KERNEL {
        for (std::size_t i = first; i < end; ++i) {
          const std::size_t head = i % s.heads;
#pragma omp simd
          for (std::size_t j = 0; j < s.width; ++j)
            store(to[i * s.width + j],
                  d_sources[i] * by_source[head * s.width + j] + d_targets[i] * by_target[head * s.width + j]);
        }
      });
    });
    const T* features = in.as<const T>();
    const auto add_gradient_of = [&](parameter& p, const float* d) {
      detail::add_row_sums(c, s.nodes, s.heads * s.width, p, [=](std::size_t r, float* sums) COMP_HOST_KERNEL {
        for (std::size_t head = 0; head < s.heads; ++head) {
          const std::size_t at = r * s.heads + head;
          const T* row = features + at * s.width;
          float* sum = sums + head * s.width;
          const float factor = d[at];
#pragma omp simd
          for (std::size_t j = 0; j < s.width; ++j) sum[j] += factor * load(row[j]);
        }
      });
    };
    add_gradient_of(source, d_sources);
    add_gradient_of(target, d_targets);
  });
  return cast(c, dx, dy.precision());
}

/// The softmax of x (E,H) over the edges that enter each node. Returns: (E,H).
inline tensor edge_softmax(context& c, const sparse_matrix& m, const tensor& x) {
  native::require_edges("edge_softmax", m.elements(), x.shape());
  const tensor in = detail::rows_of(c, x), y = c.make(x.shape(), in.layout());
  const auto heads = static_cast<std::size_t>(x.shape()[1]);
  const std::int32_t* begin = m.by_row.begin.data();
  with_operand(in.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    const T* scores = in.as<const T>();
    T* shares = y.as<T>();
    c.run_kernel([&] {
      launch_lines(m.by_row, 16 * heads, [&, scores, shares](std::size_t from, std::size_t to) COMP_HOST_KERNEL {
        std::vector<float> space((m.by_row.longest + 2) * heads);
        float *largest = space.data(), *total = largest + heads, *power = total + heads;
        for (std::size_t line = from; line < to; ++line) {
          const auto first = static_cast<std::size_t>(begin[line]);
          const std::size_t edges = static_cast<std::size_t>(begin[line + 1]) - first;
          const T* score = scores + first * heads;
          for (std::size_t head = 0; head < heads; ++head) {
            largest[head] = -std::numeric_limits<float>::infinity();
            total[head] = 0;
          }
          for (std::size_t e = 0; e < edges; ++e) {
#pragma omp simd
            for (std::size_t head = 0; head < heads; ++head) {
              power[e * heads + head] = load(score[e * heads + head]);
              largest[head] = power[e * heads + head] > largest[head] ? power[e * heads + head] : largest[head];
            }
          }
          for (std::size_t e = 0; e < edges; ++e) {
#pragma omp simd
            for (std::size_t head = 0; head < heads; ++head) {
              power[e * heads + head] = native::math::exp_of(power[e * heads + head] - largest[head]);
              total[head] += power[e * heads + head];
            }
          }
          for (std::size_t e = 0; e < edges; ++e) {
#pragma omp simd
            for (std::size_t head = 0; head < heads; ++head)
              store(shares[(first + e) * heads + head], power[e * heads + head] / total[head]);
          }
        }
      });
    });
  });
  return cast(c, y, x.precision());
}
inline tensor edge_softmax_backward(context& c, const sparse_matrix& m, const tensor& dy, const tensor& y) {
  require_same("edge_softmax_backward", dy.shape(), y.shape());
  const tensor g = detail::rows_of(c, dy), at = detail::rows_like(c, y, dy);
  const tensor dx = c.make(dy.shape(), g.layout());
  const auto heads = static_cast<std::size_t>(dy.shape()[1]);
  const std::int32_t* begin = m.by_row.begin.data();
  with_operand(g.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    const T *gradient = g.as<const T>(), *share = at.as<const T>();
    T* to = dx.as<T>();
    c.run_kernel([&] {
      launch_lines(m.by_row, 4 * heads, [=](std::size_t from, std::size_t end) COMP_HOST_KERNEL {
        std::vector<float> dots(heads);
        float* sum = dots.data();
        for (std::size_t line = from; line < end; ++line) {
          const auto first = static_cast<std::size_t>(begin[line]), last = static_cast<std::size_t>(begin[line + 1]);
          for (std::size_t head = 0; head < heads; ++head) sum[head] = 0;
          for (std::size_t e = first * heads; e < last * heads; e += heads) {
#pragma omp simd
            for (std::size_t head = 0; head < heads; ++head)
              sum[head] += load(gradient[e + head]) * load(share[e + head]);
          }
          for (std::size_t e = first * heads; e < last * heads; e += heads) {
#pragma omp simd
            for (std::size_t head = 0; head < heads; ++head)
              store(to[e + head],
                    native::math::softmax_gradient(load(gradient[e + head]), load(share[e + head]), sum[head]));
          }
        }
      });
    });
  });
  return cast(c, dx, dy.precision());
}

}  // namespace comp::host
