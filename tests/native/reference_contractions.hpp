// SPDX-License-Identifier: Apache-2.0
// Linear, convolution, embedding, batched matrix products and losses of the FP64 reference device.
#pragma once

#include "reference_tensor.hpp"

namespace comp::native::reference {

struct contractions {
  virtual ~contractions() = default;
  virtual tensor linear(const tensor& x, parameter& w, parameter* b) {
    const std::int64_t k = w.extents[1], n = w.extents[0], rows = x.size() / k;
    shape to = x.shape();
    to.back() = n;
    tensor y{to, x.precision()};
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < n; ++o) {
        double sum = b ? (*b)[o] : 0;
        for (std::int64_t i = 0; i < k; ++i) sum += x[r * k + i] * w[o * k + i];
        y[r * n + o] = sum;
      }
    }
    return y;
  }
  virtual tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                                 bool need_parameters = true) {
    const std::int64_t k = w.extents[1], n = w.extents[0], rows = x.size() / k;
    auto* dw = need_parameters ? &w.to_add() : nullptr;
    auto* db = need_parameters && b ? &b->to_add() : nullptr;
    tensor dx{x.shape(), dy.precision()};
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < n; ++o) {
        const double g = dy[r * n + o];
        if (db) (*db)[static_cast<std::size_t>(o)] += g;
        for (std::int64_t i = 0; i < k; ++i) {
          if (dw) (*dw)[static_cast<std::size_t>(o * k + i)] += g * x[r * k + i];
          dx[r * k + i] += g * w[o * k + i];
        }
      }
    }
    return need_dx ? dx : tensor{};
  }

  /// Calls f(y index, x index, w index, output channel) for every product of a convolution.
  static void for_each_product(const shape& x, const shape& w, const shape& y, const conv2d_options& o, auto f) {
    const std::int64_t *of_x = x.data(), *of_w = w.data(), *of_y = y.data(), per_group = w[0] / o.groups;
    const auto [stride_h, stride_v] = o.stride;
    const auto [padding_h, padding_v] = o.padding;
    const auto [dilation_r, dilation_s] = o.dilation;
    for (std::int64_t b = 0; b < of_y[0]; ++b)
      for (std::int64_t c = 0; c < of_y[1]; ++c)
        for (std::int64_t h = 0; h < of_y[2]; ++h)
          for (std::int64_t v = 0; v < of_y[3]; ++v)
            for (std::int64_t i = 0; i < of_w[1]; ++i)
              for (std::int64_t r = 0; r < of_w[2]; ++r)
                for (std::int64_t s = 0; s < of_w[3]; ++s) {
                  const std::int64_t in = c / per_group * of_w[1] + i;
                  const std::int64_t row = h * stride_h - padding_h + r * dilation_r;
                  const std::int64_t column = v * stride_v - padding_v + s * dilation_s;
                  if (row < 0 || row >= of_x[2] || column < 0 || column >= of_x[3]) continue;
                  f(((b * of_y[1] + c) * of_y[2] + h) * of_y[3] + v,
                    ((b * of_x[1] + in) * of_x[2] + row) * of_x[3] + column,
                    ((c * of_w[1] + i) * of_w[2] + r) * of_w[3] + s);
                }
  }
  tensor conv2d(const tensor& x, parameter& w, parameter* b, const conv2d_options& o) {
    const auto extent = [&](std::size_t axis) {
      return (x.shape()[axis] + 2 * o.padding[axis - 2] - o.dilation[axis - 2] * (w.extents[axis] - 1) - 1) /
                 o.stride[axis - 2] +
             1;
    };
    tensor y{{x.shape()[0], w.extents[0], extent(2), extent(3)}, x.precision()};
    const std::int64_t plane = y.axis(2) * y.axis(3);
    for (std::int64_t i = 0; b && i < y.size(); ++i) y[i] = (*b)[i / plane % w.extents[0]];
    for_each_product(x.shape(), w.extents, y.shape(), o,
                     [&](auto at_y, auto at_x, auto at_w) { y[at_y] += x[at_x] * w[at_w]; });
    return y;
  }
  tensor conv2d_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, const conv2d_options& o,
                         bool need_dx) {
    tensor dx{x.shape(), dy.precision()};
    double* dw = w.to_add().data();
    for_each_product(x.shape(), w.extents, dy.shape(), o, [&](auto at_y, auto at_x, auto at_w) {
      dx[at_x] += dy[at_y] * w[at_w];
      dw[at_w] += dy[at_y] * x[at_x];
    });
    if (b) {
      auto& db = b->to_add();
      const std::int64_t plane = dy.axis(2) * dy.axis(3);
      for (std::int64_t i = 0; i < dy.size(); ++i) db[static_cast<std::size_t>(i / plane % w.extents[0])] += dy[i];
    }
    return need_dx ? dx : tensor{};
  }

  tensor embedding(const index_tensor& at, parameter& w, comp::precision p) {
    const std::int64_t c = w.extents[1];
    shape to = at.extents;
    to.push_back(c);
    tensor y{to, p};
    for (std::int64_t i = 0; i < y.size(); ++i) y[i] = w[at.values[static_cast<std::size_t>(i / c)] * c + i % c];
    return y;
  }
  void embedding_backward(const tensor& dy, const index_tensor& at, parameter& w) {
    const std::int64_t c = w.extents[1];
    auto& dw = w.to_add();
    for (std::int64_t i = 0; i < dy.size(); ++i) {
      dw[static_cast<std::size_t>(at.values[static_cast<std::size_t>(i / c)] * c + i % c)] += dy[i];
    }
  }

  tensor split_heads(const tensor& x, std::int64_t heads) {  // (B,T,C) -> (B,H,T,D)
    const std::int64_t b = x.axis(0), t = x.axis(1), d = x.axis(2) / heads;
    tensor y{{b, heads, t, d}, x.precision()};
    for (std::int64_t i = 0; i < y.size(); ++i) {
      y[i] = x[((i / (d * t * heads) * t + i / d % t) * heads + i / (d * t) % heads) * d + i % d];
    }
    return y;
  }
  tensor merge_heads(const tensor& x) {  // (B,H,T,D) -> (B,T,H*D)
    const std::int64_t b = x.axis(0), h = x.axis(1), t = x.axis(2), d = x.axis(3);
    tensor y{{b, t, h * d}, x.precision()};
    for (std::int64_t i = 0; i < x.size(); ++i) {
      y[((i / (d * t * h) * t + i / d % t) * h + i / (d * t) % h) * d + i % d] = x[i];
    }
    return y;
  }
  tensor bmm(const tensor& a, const tensor& b, bool transpose_a, bool transpose_b, double alpha) {
    const std::int64_t m = a.axis(transpose_a ? -1 : -2), k = a.axis(transpose_a ? -2 : -1);
    const std::int64_t n = b.axis(transpose_b ? -2 : -1);
    shape to = a.shape();
    to[to.size() - 2] = m;
    to[to.size() - 1] = n;
    tensor y{to, a.precision()};
    for (std::int64_t i = 0; i < y.size(); ++i) {
      const std::int64_t batch = i / (m * n), row = i / n % m, column = i % n;
      double sum = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        sum += a[batch * m * k + (transpose_a ? j * m + row : row * k + j)] *
               b[batch * k * n + (transpose_b ? column * k + j : j * n + column)];
      }
      y[i] = alpha * sum;
    }
    return y;
  }
};

}  // namespace comp::native::reference
