// SPDX-License-Identifier: Apache-2.0
// Convolutions of cuDNN's stand-in: what is a convolution, which algorithms a pass has, what each supports, needs and
// is said to take. Support is as documented, and narrow if that is not; times are made up, so that the fastest is now
// one that wants much workspace, now one that is not deterministic.
#pragma once

#include <algorithm>
#include <optional>

#include "cudnn_tensors.hpp"

enum cudnnConvolutionFwdAlgo_t {
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM = 0,
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM = 1,
  CUDNN_CONVOLUTION_FWD_ALGO_GEMM = 2,
  CUDNN_CONVOLUTION_FWD_ALGO_FFT = 4,
  CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING = 5,
  CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD = 6,
  CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED = 7,
  CUDNN_CONVOLUTION_FWD_ALGO_COUNT = 8
};
enum cudnnConvolutionBwdDataAlgo_t {
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0,
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1,
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING = 3,
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT = 6
};
enum cudnnConvolutionBwdFilterAlgo_t {
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0,
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1,
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 = 3,
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT = 7
};

namespace simt {

/// Sizes and types of one convolution, each tensor with its own layout.
struct dnn_convolution {
  dnn_layout x, w, y;
  cudnnTensorFormat_t w_format;
  cudnnConvolutionStruct how;

  bool rows() const { return x.is(CUDNN_TENSOR_NCHW) && y.is(CUDNN_TENSOR_NCHW) && w_format == CUDNN_TENSOR_NCHW; }
  bool pixels() const { return x.is(CUDNN_TENSOR_NHWC) && y.is(CUDNN_TENSOR_NHWC) && w_format == CUDNN_TENSOR_NHWC; }
  bool plain() const {
    return how.stride == std::array<std::int64_t, 2>{1, 1} && how.dilation == how.stride && how.groups == 1;
  }
  /// True if operands are rounded to TF32: it is left out by CUDNN_FMA_MATH alone.
  bool rounds() const {
    return x.type == CUDNN_DATA_FLOAT && how.math != CUDNN_FMA_MATH && device.properties.major >= 8;
  }
};

/// What is wrong with it, whatever the algorithm. pass 0: forward, 1: data, 2: filter.
inline cudnnStatus_t convolvable(const dnn_convolution& c, std::size_t pass) {
  const auto& [x, w, y, format, how] = c;
  if (x.size[0] != y.size[0] || y.size[1] != w.size[0] || x.size[1] != w.size[1] * how.groups ||
      w.size[0] % how.groups != 0)
    return CUDNN_STATUS_BAD_PARAM;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t span = x.size[i + 2] + 2 * how.padding[i] - how.dilation[i] * (w.size[i + 2] - 1) - 1;
    if (span < 0 || y.size[i + 2] != span / how.stride[i] + 1) return CUDNN_STATUS_BAD_PARAM;
  }
  if (x.type != w.type || x.type != y.type || how.compute != CUDNN_DATA_FLOAT || how.mode != CUDNN_CROSS_CORRELATION)
    return CUDNN_STATUS_NOT_SUPPORTED;
  if (!c.rows() && !(c.pixels() && dnn.nhwc_convolution[pass])) return dnn.refusal;
  return typed(x);
}

struct dnn_algorithm {
  bool exists, deterministic;
  double time;
  enum { nothing, last_indices, indices, columns, spectra, absurd } needs;  // last_indices: for channels_last alone
  enum { always, any_rows, plain_rows, small_plain } supports;
};
inline const std::vector<dnn_algorithm>& algorithms_of(int pass) {
  using a = dnn_algorithm;
  static const std::vector<a> all[3] = {{{true, true, 4, a::nothing, a::always},
                                         {true, true, 2, a::indices, a::always},
                                         {true, true, 3, a::columns, a::plain_rows},
                                         {},
                                         {true, true, 0.5, a::absurd, a::small_plain},
                                         {true, true, 1, a::spectra, a::plain_rows},
                                         {true, true, 1.5, a::nothing, a::small_plain},
                                         {}},
                                        {{true, false, 1, a::nothing, a::always},
                                         {true, true, 2, a::last_indices, a::always},
                                         {},
                                         {true, true, 1.1, a::spectra, a::plain_rows},
                                         {true, true, 1.5, a::nothing, a::small_plain},
                                         {}},
                                        {{true, false, 1, a::nothing, a::always},
                                         {true, true, 2, a::last_indices, a::always},
                                         {},
                                         {true, false, 0.9, a::indices, a::any_rows},
                                         {},
                                         {true, true, 1.2, a::columns, a::small_plain},
                                         {}}};
  return all[pass];
}
/// Numbers that cuDNN lists and calls not implemented: CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, ..._BWD_FILTER_ALGO_WINOGRAD.
constexpr bool unimplemented(int pass, int number) { return (pass == 0 && number == 3) || (pass == 2 && number == 4); }
/// Bytes of workspace; nothing if the algorithm does not do this.
inline std::optional<std::size_t> workspace_of(const dnn_convolution& c, const dnn_algorithm& a) {
  const bool small = c.w.size[2] == 3 && c.w.size[3] == 3;
  const bool runs = a.supports == dnn_algorithm::always || (a.supports == dnn_algorithm::any_rows && c.rows()) ||
                    (a.supports == dnn_algorithm::plain_rows && c.plain() && c.rows()) ||
                    (a.supports == dnn_algorithm::small_plain && c.plain() && c.rows() && small);
  if (!a.exists || !runs) return std::nullopt;
  const auto pixels = static_cast<std::size_t>(c.y.size[2] * c.y.size[3]);
  const std::size_t columns =
      static_cast<std::size_t>(c.y.size[0] * c.w.size[1] * c.w.size[2] * c.w.size[3]) * pixels * c.x.bytes_each();
  switch (a.needs) {
    case dnn_algorithm::nothing:
      return 0;
    case dnn_algorithm::last_indices:
      return c.rows() ? 0 : pixels * 4;
    case dnn_algorithm::indices:
      return pixels * 4;
    case dnn_algorithm::columns:
      return columns;
    case dnn_algorithm::spectra:
      return 4 * columns;
    case dnn_algorithm::absurd:
      return std::numeric_limits<std::size_t>::max() - 255;
  }
  return std::nullopt;
}
/// How much an arithmetic takes of an algorithm's time.
inline double cost_of(const dnn_convolution& c, cudnnMathType_t math) {
  if (c.x.type != CUDNN_DATA_FLOAT) return math == CUDNN_TENSOR_OP_MATH ? 0.5 : 1;
  return math == CUDNN_FMA_MATH || device.properties.major < 8 ? 1 : 0.5;
}

inline std::vector<float> tf32(std::vector<float> all, bool rounds) {
  if (!rounds) return all;
  for (float& v : all) {
    const auto bits = __builtin_bit_cast(std::uint32_t, v);
    if ((bits & 0x7f800000U) == 0x7f800000U) continue;
    v = __builtin_bit_cast(float, (bits + 0xfffU + (bits >> 13 & 1U)) & ~0x1fffU);
  }
  return all;
}
/// f(y, x, w, count, y step, x step): neighbours in a row of y, for each of which y takes part with one x and one w.
void for_products(const dnn_convolution& c, auto f) {
  const sizes4 &s = c.x.size, &k = c.w.size, &t = c.y.size;
  const std::int64_t per_group = k[0] / c.how.groups, step = c.how.stride[1];
  for (std::int64_t b = 0; b < t[0]; ++b)
    for (std::int64_t o = 0; o < t[1]; ++o)
      for (std::int64_t i = 0; i < k[1]; ++i)
        for (std::int64_t r = 0; r < k[2]; ++r)
          for (std::int64_t q = 0; q < k[3]; ++q) {
            const std::int64_t plane = b * s[1] + o / per_group * k[1] + i;
            const std::int64_t left = q * c.how.dilation[1] - c.how.padding[1];
            const std::int64_t first = left < 0 ? (-left + step - 1) / step : 0;
            const std::int64_t last = s[3] - left > 0 ? std::min(t[3], (s[3] - left + step - 1) / step) : 0;
            for (std::int64_t h = 0; first < last && h < t[2]; ++h) {
              const std::int64_t row = h * c.how.stride[0] - c.how.padding[0] + r * c.how.dilation[0];
              if (row < 0 || row >= s[2]) continue;
              f(((b * t[1] + o) * t[2] + h) * t[3] + first, (plane * s[2] + row) * s[3] + left + first * step,
                ((o * k[1] + i) * k[2] + r) * k[3] + q, last - first, step);
            }
          }
}
/// The products of a pass, summed in FP32.
inline std::vector<float> convolved(const dnn_convolution& c, int pass, const std::vector<float>& a,
                                    const std::vector<float>& b) {
  std::vector<float> to((pass == 0 ? c.y : pass == 1 ? c.x : c.w).count());
  for_products(c, [&](std::int64_t y, std::int64_t x, std::int64_t w, std::int64_t count, std::int64_t step) {
    if (pass == 0) {
      float* sum = to.data() + y;
      for (std::int64_t i = 0; i < count; ++i)
        sum[i] += a[static_cast<std::size_t>(x + i * step)] * b[static_cast<std::size_t>(w)];
    } else if (pass == 1) {
      float* sum = to.data() + x;
      for (std::int64_t i = 0; i < count; ++i)
        sum[i * step] += b[static_cast<std::size_t>(y + i)] * a[static_cast<std::size_t>(w)];
    } else {
      float sum = 0;
      for (std::int64_t i = 0; i < count; ++i)
        sum += a[static_cast<std::size_t>(x + i * step)] * b[static_cast<std::size_t>(y + i)];
      to[static_cast<std::size_t>(w)] += sum;
    }
  });
  return to;
}

}  // namespace simt
