// SPDX-License-Identifier: Apache-2.0
// Pooling and losses of the FP64 reference device.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "reference_layers.hpp"
#include "reference_tensor.hpp"

namespace comp::native::reference {

struct pools {
  /// Calls f(y index, x index) for every element of every window; those in the padding are left out.
  static void for_each_in_window(const shape& x, const shape& y, const pool2d_options& o, auto f) {
    for (std::int64_t i = 0; i < elements(y); ++i) {
      const std::int64_t plane = i / (y[2] * y[3]), top = i / y[3] % y[2] * o.stride[0] - o.padding[0];
      const std::int64_t left = i % y[3] * o.stride[1] - o.padding[1];
      for (std::int64_t r = std::max<std::int64_t>(top, 0); r < std::min(top + o.kernel[0], x[2]); ++r) {
        for (std::int64_t s = std::max<std::int64_t>(left, 0); s < std::min(left + o.kernel[1], x[3]); ++s) {
          f(i, (plane * x[2] + r) * x[3] + s);
        }
      }
    }
  }
  static shape pooled(const shape& x, const pool2d_options& o) {
    return {x[0], x[1], (x[2] + 2 * o.padding[0] - o.kernel[0]) / o.stride[0] + 1,
            (x[3] + 2 * o.padding[1] - o.kernel[1]) / o.stride[1] + 1};
  }
  with_saved<tensor> max_pool2d(const tensor& x, const pool2d_options& o) {
    tensor y{pooled(x.shape(), o), x.precision()}, from{y.shape(), precision::fp32};
    std::ranges::fill(y.values(), -std::numeric_limits<double>::infinity());
    for_each_in_window(x.shape(), y.shape(), o, [&](auto to, auto at) {
      if (!(x[at] > y[to]) && !std::isnan(x[at])) return;
      y[to] = x[at];
      from[to] = static_cast<double>(at);
    });
    return {y, {from}};
  }
  tensor max_pool2d_backward(const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                             const pool2d_options&) {
    tensor dx{x.shape(), dy.precision()};
    for (std::int64_t i = 0; i < dy.size(); ++i) dx[static_cast<std::int64_t>(saved[0][i])] += dy[i];
    return dx;
  }
  tensor avg_pool2d(const tensor& x, const pool2d_options& o) {
    tensor y{pooled(x.shape(), o), x.precision()};
    const double area = static_cast<double>(o.kernel[0] * o.kernel[1]);
    for_each_in_window(x.shape(), y.shape(), o, [&](auto to, auto at) { y[to] += x[at] / area; });
    return y;
  }
  tensor avg_pool2d_backward(const tensor& dy, const shape& of_x, const pool2d_options& o) {
    tensor dx{of_x, dy.precision()};
    const double area = static_cast<double>(o.kernel[0] * o.kernel[1]);
    for_each_in_window(of_x, dy.shape(), o, [&](auto to, auto at) { dx[at] += dy[to] / area; });
    return dx;
  }

  /// Calls f(y index, x index, elements in the bin).
  static void for_each_in_bin(const shape& x, const shape& y, auto f) {
    const auto first = [](std::int64_t i, std::int64_t in, std::int64_t out) { return i * in / out; };
    const auto last = [](std::int64_t i, std::int64_t in, std::int64_t out) { return ((i + 1) * in + out - 1) / out; };
    for (std::int64_t i = 0; i < elements(y); ++i) {
      const std::int64_t plane = i / (y[2] * y[3]), h = i / y[3] % y[2], w = i % y[3];
      const std::int64_t top = first(h, x[2], y[2]), bottom = last(h, x[2], y[2]);
      const std::int64_t left = first(w, x[3], y[3]), right = last(w, x[3], y[3]);
      for (std::int64_t r = top; r < bottom; ++r) {
        for (std::int64_t s = left; s < right; ++s) {
          f(i, (plane * x[2] + r) * x[3] + s, static_cast<double>((bottom - top) * (right - left)));
        }
      }
    }
  }
  tensor adaptive_avg_pool2d(const tensor& x, std::array<std::int64_t, 2> size) {
    tensor y{{x.axis(0), x.axis(1), size[0], size[1]}, x.precision()};
    for_each_in_bin(x.shape(), y.shape(), [&](auto to, auto at, double count) { y[to] += x[at] / count; });
    return y;
  }
  tensor adaptive_avg_pool2d_backward(const tensor& dy, const shape& of_x) {
    tensor dx{of_x, dy.precision()};
    for_each_in_bin(of_x, dy.shape(), [&](auto to, auto at, double count) { dx[at] += dy[to] / count; });
    return dx;
  }
};

/// Means over the targets that are not negative.
struct losses {
  virtual ~losses() = default;
  static double targets_in(const index_tensor& target) {
    return static_cast<double>(std::ranges::count_if(target.values, [](auto t) { return t >= 0; }));
  }
  void nll_loss(const tensor& logp, const index_tensor& target, double* loss) {
    double sum = 0;
    for (std::size_t r = 0; r < target.values.size(); ++r) {
      if (target.values[r] >= 0) sum -= logp[static_cast<std::int64_t>(r) * logp.axis(1) + target.values[r]];
    }
    *loss = sum / targets_in(target);
  }
  tensor nll_loss_backward(const tensor& logp, const index_tensor& target, double scale) {
    tensor dx{logp.shape(), logp.precision()};
    for (std::size_t r = 0; r < target.values.size(); ++r) {
      if (target.values[r] < 0) continue;
      dx[static_cast<std::int64_t>(r) * logp.axis(1) + target.values[r]] = -scale / targets_in(target);
    }
    return dx;
  }
  with_saved<tensor> cross_entropy(const tensor& logits, const index_tensor& target, double* loss) {
    const tensor logp = layers{}.log_softmax(logits);
    nll_loss(logp, target, loss);
    return {tensor{}, {logp}};
  }
  tensor cross_entropy_backward(const std::vector<tensor>& saved, const index_tensor& target, double scale) {
    return layers{}.log_softmax_backward(nll_loss_backward(saved[0], target, scale), saved[0]);
  }
  virtual void mse_loss(const tensor& x, const tensor& target, double* loss) {
    double sum = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) sum += (x[i] - target[i]) * (x[i] - target[i]);
    *loss = sum / static_cast<double>(x.size());
  }
  virtual tensor mse_loss_backward(const tensor& x, const tensor& target, double scale) {
    return layers::map(x, [&](auto i) { return 2 * scale * (x[i] - target[i]) / static_cast<double>(x.size()); });
  }
  virtual void binary_cross_entropy(const tensor& x, double target, double* loss) {
    double sum = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const double yes = 1 / (1 + std::exp(-x[i]));
      sum -= target * std::log(yes) + (1 - target) * std::log(1 - yes);
    }
    *loss = sum / static_cast<double>(x.size());
  }
  virtual tensor binary_cross_entropy_backward(const tensor& x, double target, double scale) {
    return layers::map(
        x, [&](auto i) { return scale / static_cast<double>(x.size()) * (1 / (1 + std::exp(-x[i])) - target); });
  }
  std::int64_t count_correct(const tensor& logits, const index_tensor& target) {
    std::int64_t correct = 0;
    const std::int64_t classes = logits.axis(1);
    for (std::size_t r = 0; r < target.values.size(); ++r) {
      const auto row = logits.values().begin() + static_cast<std::ptrdiff_t>(r) * classes;
      correct += std::max_element(row, row + classes) - row == target.values[r];
    }
    return correct;
  }
};

}  // namespace comp::native::reference
