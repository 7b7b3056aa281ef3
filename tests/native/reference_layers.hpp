// SPDX-License-Identifier: Apache-2.0
// Norms, activations, dropout, element-wise operators and softmax of the FP64 reference device.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "reference_tensor.hpp"

namespace comp::native::reference {

struct layers {
  virtual ~layers() = default;
  /// The elements that a batch norm reduces together: channel c of (B,C,H,W) or (B,C).
  static void for_each_of_channel(const tensor& x, std::int64_t c, auto f) {
    const std::int64_t channels = x.axis(1), plane = x.size() / (x.axis(0) * channels);
    for (std::int64_t b = 0; b < x.axis(0); ++b) {
      for (std::int64_t i = 0; i < plane; ++i) f((b * channels + c) * plane + i);
    }
  }
  virtual with_saved<tensor> batch_norm(const tensor& x, parameter& gamma, parameter& beta, parameter& mean,
                                        parameter& variance, const batch_norm_options& o) {
    const std::int64_t channels = x.axis(1);
    const double count = static_cast<double>(x.size() / channels);
    with_saved<tensor> result{tensor{x.shape(), x.precision()},
                              {tensor{{channels}, precision::fp32}, tensor{{channels}, precision::fp32}}};
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto at = static_cast<std::size_t>(c);
      double m = 0, v = 0;
      for_each_of_channel(x, c, [&](auto i) { m += x[i] / count; });
      for_each_of_channel(x, c, [&](auto i) { v += (x[i] - m) * (x[i] - m) / count; });
      if (o.training) {
        mean.value[at] += o.momentum * (m - mean.value[at]);
        variance.value[at] += o.momentum * (v * count / (count - 1) - variance.value[at]);
      } else {
        m = mean.value[at];
        v = variance.value[at];
      }
      const double scale = 1 / std::sqrt(v + o.eps);
      for_each_of_channel(x, c, [&](auto i) { result.output[i] = (x[i] - m) * scale * gamma[c] + beta[c]; });
      result.saved[0][c] = m;
      result.saved[1][c] = scale;
    }
    return result;
  }
  virtual tensor batch_norm_backward(const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                     parameter& gamma, parameter& beta, const batch_norm_options& o) {
    tensor dx{x.shape(), dy.precision()};
    const double count = static_cast<double>(x.size() / x.axis(1));
    auto& dgamma = gamma.to_add();
    auto& dbeta = beta.to_add();
    for (std::int64_t c = 0; c < x.axis(1); ++c) {
      const double m = saved[0][c], scale = saved[1][c];
      double sum = 0, dot = 0;
      for_each_of_channel(x, c, [&](auto i) {
        sum += dy[i];
        dot += dy[i] * (x[i] - m) * scale;
      });
      dgamma[static_cast<std::size_t>(c)] += dot;
      dbeta[static_cast<std::size_t>(c)] += sum;
      for_each_of_channel(x, c, [&](auto i) {
        const double through_statistics = o.training ? (sum + (x[i] - m) * scale * dot) / count : 0;
        dx[i] = gamma[c] * scale * (dy[i] - through_statistics);
      });
    }
    return dx;
  }

  virtual with_saved<tensor> layer_norm(const tensor& x, parameter& gamma, parameter& beta, double eps) {
    const std::int64_t c = x.axis(-1), rows = x.size() / c;
    with_saved<tensor> result{tensor{x.shape(), x.precision()},
                              {tensor{{rows}, precision::fp32}, tensor{{rows}, precision::fp32}}};
    for (std::int64_t r = 0; r < rows; ++r) {
      double m = 0, v = 0;
      for (std::int64_t i = 0; i < c; ++i) m += x[r * c + i] / static_cast<double>(c);
      for (std::int64_t i = 0; i < c; ++i) v += (x[r * c + i] - m) * (x[r * c + i] - m) / static_cast<double>(c);
      result.saved[0][r] = m;
      result.saved[1][r] = 1 / std::sqrt(v + eps);
      for (std::int64_t i = 0; i < c; ++i) {
        result.output[r * c + i] = (x[r * c + i] - m) * result.saved[1][r] * gamma[i] + beta[i];
      }
    }
    return result;
  }
  virtual tensor layer_norm_backward(const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                     parameter& gamma, parameter& beta, double) {
    const std::int64_t c = x.axis(-1), rows = x.size() / c;
    tensor dx{x.shape(), dy.precision()};
    auto& dgamma = gamma.to_add();
    auto& dbeta = beta.to_add();
    for (std::int64_t r = 0; r < rows; ++r) {
      const double m = saved[0][r], scale = saved[1][r];
      double sum = 0, dot = 0;
      for (std::int64_t i = 0; i < c; ++i) {
        const double g = dy[r * c + i], normal = (x[r * c + i] - m) * scale;
        dgamma[static_cast<std::size_t>(i)] += g * normal;
        dbeta[static_cast<std::size_t>(i)] += g;
        sum += g * gamma[i];
        dot += g * gamma[i] * normal;
      }
      for (std::int64_t i = 0; i < c; ++i) {
        const double normal = (x[r * c + i] - m) * scale;
        dx[r * c + i] = scale * (dy[r * c + i] * gamma[i] - (sum + normal * dot) / static_cast<double>(c));
      }
    }
    return dx;
  }

  static tensor map(const tensor& like, auto f) {
    tensor y{like.shape(), like.precision()};
    for (std::int64_t i = 0; i < y.size(); ++i) y[i] = f(i);
    return y;
  }
  static constexpr double root_2_pi = 0.79788456080286535588;  // of 2 / pi
  static double activated(activation kind, double x) {
    switch (kind) {
      case activation::relu:
        return x > 0 || std::isnan(x) ? x : 0;
      case activation::gelu:
        return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
      case activation::gelu_tanh:
        return x / 2 * (1 + std::tanh(root_2_pi * (x + 0.044715 * x * x * x)));
      case activation::tanh:
        return std::tanh(x);
      case activation::sigmoid:
        return 1 / (1 + std::exp(-x));
      case activation::elu:
        return x > 0 ? x : std::expm1(x);
      case activation::leaky_relu:
        return x > 0 ? x : double{leaky_slope} * x;
    }
    return x;
  }
  static double slope(activation kind, double x, double y) {
    switch (kind) {
      case activation::relu:
        return y > 0 ? 1 : 0;
      case activation::gelu:
        return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / 2 * root_2_pi;
      case activation::gelu_tanh: {
        const double t = std::tanh(root_2_pi * (x + 0.044715 * x * x * x));
        return (1 + t + x * (1 - t * t) * root_2_pi * (1 + 3 * 0.044715 * x * x)) / 2;
      }
      case activation::tanh:
        return 1 - y * y;
      case activation::sigmoid:
        return y * (1 - y);
      case activation::elu:
        return y > 0 ? 1 : y + 1;
      case activation::leaky_relu:
        return y > 0 ? 1 : double{leaky_slope};
    }
    return 1;
  }
  tensor activate(activation kind, const tensor& x) {
    return map(x, [&](auto i) { return activated(kind, x[i]); });
  }
  tensor activate_backward(activation kind, const tensor& dy, const tensor& x, const tensor& y) {
    return map(dy, [&](auto i) { return dy[i] * slope(kind, x[i], y[i]); });
  }
  virtual tensor dropout(const tensor& x, double p, const dropout_key& key) {
    return map(x, [&](auto i) { return keeps(p, key, static_cast<std::uint64_t>(i)) ? x[i] / (1 - p) : 0; });
  }
  tensor dropout_backward(const tensor& dy, double p, const dropout_key& key) { return layers::dropout(dy, p, key); }
  tensor add(const tensor& a, const tensor& b) {
    return map(a, [&](auto i) { return a[i] + b[i]; });
  }
  virtual tensor mul(const tensor& a, const tensor& b) {
    return map(a, [&](auto i) { return a[i] * b[i]; });
  }
  virtual tensor sum(std::span<const tensor> all) {
    return map(all[0], [&](auto i) {
      double total = 0;
      for (const tensor& t : all) total += t[i];
      return total;
    });
  }

  /// Row by row, columns after the row's own place left out when causal; `out` gets exponentials divided by their sum.
  tensor softmax(const tensor& x, bool causal) {
    return softmax_of(x, [&](std::int64_t r) { return causal ? r % x.axis(-2) + 1 : x.axis(-1); });
  }
  tensor padded_softmax(const tensor& x, const index_tensor& lengths) {
    const std::int64_t rows_each = x.size() / x.axis(-1) / x.axis(0);
    return softmax_of(x, [&](std::int64_t r) { return lengths.values[static_cast<std::size_t>(r / rows_each)]; });
  }
  static tensor softmax_of(const tensor& x, auto end_of) {
    const std::int64_t c = x.axis(-1), rows = x.size() / c;
    tensor y{x.shape(), x.precision()};
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t end = end_of(r);
      double top = x[r * c], sum = 0;
      for (std::int64_t i = 0; i < end; ++i) top = std::max(top, x[r * c + i]);
      for (std::int64_t i = 0; i < end; ++i) sum += y[r * c + i] = std::exp(x[r * c + i] - top);
      for (std::int64_t i = 0; i < end; ++i) y[r * c + i] /= sum;
    }
    return y;
  }
  tensor softmax_backward(const tensor& dy, const tensor& y, bool causal = false) {
    const std::int64_t c = y.axis(-1);
    const auto in_mask = [&](std::int64_t i) { return !causal || i % c <= i / c % y.axis(-2); };
    std::vector<double> dot(static_cast<std::size_t>(y.size() / c));
    for (std::int64_t i = 0; i < y.size(); ++i) dot[static_cast<std::size_t>(i / c)] += in_mask(i) ? dy[i] * y[i] : 0;
    return map(dy, [&](auto i) { return in_mask(i) ? y[i] * (dy[i] - dot[static_cast<std::size_t>(i / c)]) : 0.0; });
  }
  tensor log_softmax(const tensor& x) {
    tensor y = softmax(x, false);
    const std::int64_t c = x.axis(-1), rows = x.size() / c;
    for (std::int64_t r = 0; r < rows; ++r) {  // from x, not from the rounded softmax
      double top = x[r * c], sum = 0;
      for (std::int64_t i = 0; i < c; ++i) top = std::max(top, x[r * c + i]);
      for (std::int64_t i = 0; i < c; ++i) sum += std::exp(x[r * c + i] - top);
      for (std::int64_t i = 0; i < c; ++i) y[r * c + i] = x[r * c + i] - top - std::log(sum);
    }
    return y;
  }
  tensor log_softmax_backward(const tensor& dy, const tensor& y) {
    const std::int64_t c = y.axis(-1);
    std::vector<double> sum(static_cast<std::size_t>(y.size() / c));
    for (std::int64_t i = 0; i < y.size(); ++i) sum[static_cast<std::size_t>(i / c)] += dy[i];
    return map(dy, [&](auto i) { return dy[i] - std::exp(y[i]) * sum[static_cast<std::size_t>(i / c)]; });
  }
};

}  // namespace comp::native::reference
