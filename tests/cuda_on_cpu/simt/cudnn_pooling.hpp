// SPDX-License-Identifier: Apache-2.0
// Pooling of cuDNN's stand-in. The first of equal elements wins a window; NaN wins if it propagates.
#pragma once

#include <cmath>

#include "cudnn_tensors.hpp"

inline cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* to) {
  return simt::dnn_call([=] { return simt::make_dnn_object(to); });
}
inline cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t d) { return simt::destroy_dnn_object(d); }
inline cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t d, cudnnPoolingMode_t mode,
                                                 cudnnNanPropagation_t nan, int height, int width, int pad_h, int pad_w,
                                                 int stride_h, int stride_w) {
  return simt::dnn_call([=] {
    if (!simt::alive(d)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (height <= 0 || width <= 0 || stride_h <= 0 || stride_w <= 0 || pad_h < 0 || pad_w < 0 || pad_h >= height ||
        pad_w >= width)
      return CUDNN_STATUS_BAD_PARAM;
    *d = {true, mode, nan, {height, width}, {pad_h, pad_w}, {stride_h, stride_w}};
    return CUDNN_STATUS_SUCCESS;
  });
}

namespace simt {

inline cudnnStatus_t poolable(const cudnnPoolingStruct& p, const dnn_layout& x, const dnn_layout& y) {
  if (x.type != y.type || x.size[0] != y.size[0] || x.size[1] != y.size[1]) return CUDNN_STATUS_BAD_PARAM;
  for (std::size_t i = 0; i < 2; ++i) {
    if (y.size[i + 2] != (x.size[i + 2] + 2 * p.padding[i] - p.window[i]) / p.stride[i] + 1)
      return CUDNN_STATUS_BAD_PARAM;
  }
  const bool rows = x.is(CUDNN_TENSOR_NCHW) && y.is(CUDNN_TENSOR_NCHW);
  if (!rows && !(dnn.nhwc_pooling && x.is(CUDNN_TENSOR_NHWC) && y.is(CUDNN_TENSOR_NHWC))) return dnn.refusal;
  if (x.type == CUDNN_DATA_BFLOAT16 && !dnn.bf16_pooling) return dnn.refusal;
  return typed(x);
}
/// f(index in y, index in x) for each element of each window that is in the image.
void for_windows(const cudnnPoolingStruct& p, const dnn_layout& x, const dnn_layout& y, auto f) {
  const sizes4 &s = x.size, &t = y.size;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(y.count()); ++i) {
    const std::int64_t plane = i / (t[2] * t[3]), top = i / t[3] % t[2] * p.stride[0] - p.padding[0],
                       left = i % t[3] * p.stride[1] - p.padding[1];
    for (std::int64_t r = std::max<std::int64_t>(top, 0); r < std::min(top + p.window[0], s[2]); ++r)
      for (std::int64_t c = std::max<std::int64_t>(left, 0); c < std::min(left + p.window[1], s[3]); ++c)
        f(static_cast<std::size_t>(i), static_cast<std::size_t>((plane * s[2] + r) * s[3] + c));
  }
}
inline bool takes_maximum(const cudnnPoolingStruct& p) {
  return p.mode == CUDNN_POOLING_MAX || p.mode == CUDNN_POOLING_MAX_DETERMINISTIC;
}
/// Which element of x wins each window.
inline std::vector<std::size_t> winners(const cudnnPoolingStruct& p, const dnn_layout& x, const dnn_layout& y,
                                        const std::vector<float>& in) {
  constexpr auto none = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> won(y.count(), none);
  for_windows(p, x, y, [&](std::size_t to, std::size_t at) {
    const bool nan = p.nan == CUDNN_PROPAGATE_NAN && std::isnan(in[at]);
    if (won[to] == none || in[at] > in[won[to]] || (nan && !std::isnan(in[won[to]]))) won[to] = at;
  });
  return won;
}

}  // namespace simt

inline cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void* alpha,
                                         cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                         cudnnTensorDescriptor_t y_desc, void* y) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, y_desc, pooling));
    COMP_DNN_REQUIRE(simt::poolable(*pooling, *x_desc, *y_desc));
    COMP_DNN_REQUIRE(simt::addressed(x, y));
    const simt::dnn_layout in = *x_desc, out = *y_desc;
    simt::dnn.pools.push_back(pooling->mode);
    return simt::give_dnn(handle, [=, p = *pooling, by = simt::factor(alpha), keep = simt::factor(beta)] {
      const std::vector<float> values = simt::gather(in, x);
      std::vector<float> all(out.count());
      if (simt::takes_maximum(p)) {
        const auto won = simt::winners(p, in, out, values);
        for (std::size_t i = 0; i < all.size(); ++i) all[i] = values[won[i]];
      } else {
        simt::for_windows(p, in, out, [&](std::size_t to, std::size_t at) { all[to] += values[at]; });
        for (float& each : all) each /= static_cast<float>(p.window[0] * p.window[1]);
      }
      simt::scatter(out, y, std::move(all), by, keep);
    });
  });
}
/// x and y are read for maxima alone.
inline cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void* alpha,
                                          cudnnTensorDescriptor_t y_desc, const void* y,
                                          cudnnTensorDescriptor_t dy_desc, const void* dy,
                                          cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                          cudnnTensorDescriptor_t dx_desc, void* dx) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, y_desc, dx_desc, dy_desc, pooling));
    COMP_DNN_REQUIRE(simt::poolable(*pooling, *x_desc, *y_desc));
    COMP_DNN_REQUIRE(simt::addressed(x, y, dx, dy));
    const simt::dnn_layout in = *x_desc, out = *y_desc;
    simt::dnn.pools.push_back(pooling->mode);
    if (in != static_cast<const simt::dnn_layout&>(*dx_desc) || out != static_cast<const simt::dnn_layout&>(*dy_desc))
      return CUDNN_STATUS_BAD_PARAM;
    return simt::give_dnn(handle, [=, p = *pooling, by = simt::factor(alpha), keep = simt::factor(beta)] {
      const std::vector<float> g = simt::gather(out, dy);
      std::vector<float> all(in.count());
      if (simt::takes_maximum(p)) {
        const std::vector<float> values = simt::gather(in, x), given = simt::gather(out, y);
        const auto won = simt::winners(p, in, out, values);
        for (std::size_t i = 0; i < g.size(); ++i) {
          if (given[i] != values[won[i]] && !std::isnan(given[i]))
            throw simt::fault{"the backward of pooling is given a y that is not the maximum of x"};
          all[won[i]] += g[i];
        }
      } else {
        const auto area = static_cast<float>(p.window[0] * p.window[1]);
        simt::for_windows(p, in, out, [&](std::size_t to, std::size_t at) { all[at] += g[to] / area; });
      }
      simt::scatter(in, dx, std::move(all), by, keep);
    });
  });
}
