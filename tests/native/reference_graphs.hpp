// SPDX-License-Identifier: Apache-2.0
// What networks on graphs do along edges, on the FP64 reference device.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp_native/host_csr.hpp>
#include <vector>

#include "reference_tensor.hpp"

namespace comp::native::reference {

struct graphs {
  using sparse_matrix = host_csr;
  static sparse_matrix make_sparse(const host_csr& from) {
    require_csr(from);
    return from;
  }
  /// f(row, column, element) for each element, row by row.
  static void for_each(const sparse_matrix& m, auto f) {
    const auto rows = rows_of(m);
    for (std::size_t e = 0; e < rows.size(); ++e)
      f(std::int64_t{rows[e]}, std::int64_t{m.column[e]}, static_cast<std::int64_t>(e));
  }
  static double value_of(const sparse_matrix& m, std::int64_t e) {
    return m.value.empty() ? 1 : static_cast<double>(m.value[static_cast<std::size_t>(e)]);
  }
  static void add_columns(const tensor& dy, parameter* b) {
    if (!b) return;
    auto& db = b->to_add();
    for (std::int64_t i = 0; i < dy.size(); ++i) db[static_cast<std::size_t>(i % dy.axis(1))] += dy[i];
  }

  static tensor sparse_linear(const sparse_matrix& m, const tensor& values, parameter& w) {
    const std::int64_t units = w.extents[1];
    tensor y{{m.rows, units}, values.precision()};
    for_each(m, [&](auto r, auto k, auto e) {
      for (std::int64_t u = 0; u < units; ++u) y[r * units + u] += values[e] * w[k * units + u];
    });
    return y;
  }
  static tensor sparse_linear_backward(const sparse_matrix& m, const tensor& dy, const tensor& values, parameter& w,
                                       bool need_dx) {
    const std::int64_t units = w.extents[1];
    auto& dw = w.to_add();
    tensor dx{values.shape(), dy.precision()};
    for_each(m, [&](auto r, auto k, auto e) {
      for (std::int64_t u = 0; u < units; ++u) {
        dw[static_cast<std::size_t>(k * units + u)] += values[e] * dy[r * units + u];
        dx[e] += w[k * units + u] * dy[r * units + u];
      }
    });
    return need_dx ? dx : tensor{};
  }

  static tensor spmm(const sparse_matrix& m, const tensor& x, parameter* b) {
    const std::int64_t width = x.axis(1);
    tensor y{{m.rows, width}, x.precision()};
    for (std::int64_t i = 0; b && i < y.size(); ++i) y[i] = (*b)[i % width];
    for_each(m, [&](auto r, auto k, auto e) {
      for (std::int64_t j = 0; j < width; ++j) y[r * width + j] += value_of(m, e) * x[k * width + j];
    });
    return y;
  }
  static tensor spmm_backward(const sparse_matrix& m, const tensor& dy, parameter* b, bool need_dx) {
    const std::int64_t width = dy.axis(1);
    add_columns(dy, b);
    tensor dx{{m.columns, width}, dy.precision()};
    for_each(m, [&](auto r, auto k, auto e) {
      for (std::int64_t j = 0; j < width; ++j) dx[k * width + j] += value_of(m, e) * dy[r * width + j];
    });
    return need_dx ? dx : tensor{};
  }

  static tensor head_products(const tensor& x, const parameter& by) {
    const std::int64_t heads = by.extents[1], width = by.extents[2];
    tensor y{{x.axis(0), heads}, precision::fp32};
    for (std::int64_t i = 0; i < x.size(); ++i) y[i / width] += x[i] * by[i % (heads * width)];
    return y;
  }
  static with_saved<tensor> edge_scores(const sparse_matrix& m, const tensor& x, parameter& source, parameter& target,
                                        double slope) {
    const std::int64_t heads = source.extents[1];
    const tensor from = head_products(x, source), to = head_products(x, target);
    tensor y{{std::ssize(m.column), heads}, x.precision()};
    for_each(m, [&](auto r, auto k, auto e) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const double sum = to[r * heads + h] + from[k * heads + h];
        y[e * heads + h] = sum > 0 ? sum : slope * sum;
      }
    });
    return {y, {from, to}};
  }
  static tensor edge_scores_backward(const sparse_matrix& m, const tensor& dy, const tensor& x,
                                     const std::vector<tensor>& saved, parameter& source, parameter& target,
                                     double slope) {
    const std::int64_t heads = source.extents[1], width = source.extents[2], features = heads * width;
    tensor d_from{saved[0].shape(), precision::fp32}, d_to{saved[1].shape(), precision::fp32};
    for_each(m, [&](auto r, auto k, auto e) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const double d = dy[e * heads + h] * (saved[1][r * heads + h] + saved[0][k * heads + h] > 0 ? 1 : slope);
        d_to[r * heads + h] += d;
        d_from[k * heads + h] += d;
      }
    });
    auto &d_source = source.to_add(), &d_target = target.to_add();
    tensor dx{x.shape(), dy.precision()};
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const std::int64_t at = i % features;
      dx[i] = d_from[i / width] * source[at] + d_to[i / width] * target[at];
      d_source[static_cast<std::size_t>(at)] += d_from[i / width] * x[i];
      d_target[static_cast<std::size_t>(at)] += d_to[i / width] * x[i];
    }
    return dx;
  }

  static tensor edge_softmax(const sparse_matrix& m, const tensor& x) {
    const std::int64_t heads = x.axis(1);
    std::vector<double> largest(static_cast<std::size_t>(m.rows * heads), -INFINITY), total(largest.size());
    tensor y{x.shape(), x.precision()};
    const auto each = [&](auto f) {
      for_each(m, [&](auto r, auto, auto e) {
        for (std::int64_t h = 0; h < heads; ++h) f(static_cast<std::size_t>(r * heads + h), e * heads + h);
      });
    };
    each([&](auto at, auto i) { largest[at] = std::max(largest[at], x[i]); });
    each([&](auto at, auto i) { total[at] += y[i] = std::exp(x[i] - largest[at]); });
    each([&](auto at, auto i) { y[i] /= total[at]; });
    return y;
  }
  static tensor edge_softmax_backward(const sparse_matrix& m, const tensor& dy, const tensor& y) {
    const std::int64_t heads = y.axis(1);
    std::vector<double> dot(static_cast<std::size_t>(m.rows * heads));
    tensor dx{y.shape(), dy.precision()};
    for_each(m, [&](auto r, auto, auto e) {
      for (std::int64_t i = e * heads; i < (e + 1) * heads; ++i)
        dot[static_cast<std::size_t>(r * heads + i % heads)] += dy[i] * y[i];
    });
    for_each(m, [&](auto r, auto, auto e) {
      for (std::int64_t i = e * heads; i < (e + 1) * heads; ++i)
        dx[i] = y[i] * (dy[i] - dot[static_cast<std::size_t>(r * heads + i % heads)]);
    });
    return dx;
  }

  static tensor weighted_sum(const sparse_matrix& m, const tensor& share, const tensor& x, parameter* b) {
    const std::int64_t heads = share.axis(1), features = x.axis(1), width = features / heads;
    tensor y{{m.rows, features}, share.precision()};
    for (std::int64_t i = 0; b && i < y.size(); ++i) y[i] = (*b)[i % features];
    for_each(m, [&](auto r, auto k, auto e) {
      for (std::int64_t j = 0; j < features; ++j)
        y[r * features + j] += share[e * heads + j / width] * x[k * features + j];
    });
    return y;
  }
  static std::array<tensor, 2> weighted_sum_backward(const sparse_matrix& m, const tensor& dy, const tensor& share,
                                                     const tensor& x, parameter* b) {
    const std::int64_t heads = share.axis(1), features = x.axis(1), width = features / heads;
    add_columns(dy, b);
    tensor d_share{share.shape(), dy.precision()}, dx{x.shape(), dy.precision()};
    for_each(m, [&](auto r, auto k, auto e) {
      for (std::int64_t j = 0; j < features; ++j) {
        d_share[e * heads + j / width] += dy[r * features + j] * x[k * features + j];
        dx[k * features + j] += dy[r * features + j] * share[e * heads + j / width];
      }
    });
    return {d_share, dx};
  }
};

}  // namespace comp::native::reference
