// SPDX-License-Identifier: Apache-2.0
// Max and average pooling by cuDNN, and averages over a given number of bins by own kernels, in the order that x has.
// NaN passes through, as in PyTorch. The gradient of a maximum goes to one element of its window, by cuDNN's
// deterministic rule. If cuDNN does not pool a storage or an order, FP32 copies are pooled instead (dnn.hpp).
#pragma once

#include <array>
#include <comp_native/op/pool.hpp>
#include <cstdint>
#include <vector>

#include "dnn.hpp"

namespace comp::cuda {

using native::pool2d_options;
using saved_tensor = native::with_saved<tensor>;

namespace detail {

inline pooling_descriptor describe_windows(cudnnPoolingMode_t mode, const pool2d_options& o) {
  pooling_descriptor d;
  check(cudnnSetPooling2dDescriptor(d.get(), mode, CUDNN_PROPAGATE_NAN, dnn_size(o.kernel[0]), dnn_size(o.kernel[1]),
                                    dnn_size(o.padding[0]), dnn_size(o.padding[1]), dnn_size(o.stride[0]),
                                    dnn_size(o.stride[1])),
        "describing windows to cuDNN");
  return d;
}
inline dnn_case pooling_case(char what, cudnnPoolingMode_t mode, const tensor& t, const pool2d_options& o) {
  return case_of(what, t, {mode, o.kernel[0], o.kernel[1], o.stride[0], o.stride[1], o.padding[0], o.padding[1]});
}

inline tensor pool_forward(context& c, const tensor& x, const shape& to, const pool2d_options& o,
                           cudnnPoolingMode_t mode) {
  auto& library = c.part<dnn>();
  const pooling_descriptor windows = describe_windows(mode, o);
  tensor y;
  library.by_route(pooling_case('p', mode, x, o), "pooling", [&](route by) {
    const tensor in = routed(c, x, by);
    y = c.make(to, in.precision(), in.order());
    return cudnnPoolingForward(library.handle(), windows.get(), &dnn_one, describe(in).get(), in.materialize(),
                               &dnn_zero, describe(y).get(), y.materialize());
  });
  return cast(c, y, x.precision());
}
/// x and y: the forward's operand and result; empty for averages, whose gradient does not depend on them.
inline tensor pool_backward(context& c, const tensor& dy, const tensor& x, const tensor& y, const shape& of_x,
                            const pool2d_options& o, cudnnPoolingMode_t mode) {
  auto& library = c.part<dnn>();
  const pooling_descriptor windows = describe_windows(mode, o);
  tensor dx;
  library.by_route(pooling_case('b', mode, dy, o), "the backward of pooling", [&](route by) {
    const tensor g = routed(c, dy, by);
    dx = c.make(of_x, g.precision(), g.order());
    const tensor in = x ? routed(c, x, by) : dx, out = y ? routed(c, y, by) : g;  // cuDNN wants some, even for averages
    const tensor_descriptor outer = describe(g), inner = describe(dx);
    return cudnnPoolingBackward(library.handle(), windows.get(), &dnn_one, outer.get(), out.materialize(), outer.get(),
                                g.materialize(), inner.get(), in.materialize(), &dnn_zero, inner.get(),
                                dx.materialize());
  });
  return cast(c, dx, dy.precision());
}

}  // namespace detail

/// saved: y, by which cuDNN's backward finds the maxima.
inline saved_tensor max_pool2d(context& c, const tensor& x, const pool2d_options& o) {
  const shape to = native::pooled("max_pool2d", x.shape(), o);
  tensor y = detail::pool_forward(c, x, to, o, CUDNN_POOLING_MAX_DETERMINISTIC);
  return {y, {y}};
}
inline tensor max_pool2d_backward(context& c, const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                  const pool2d_options& o) {
  require_same("max_pool2d_backward", dy.shape(), native::pooled("max_pool2d_backward", x.shape(), o));
  const tensor in = cast(c, x, dy.precision());
  const tensor out = in_order(c, cast(c, saved[0], dy.precision()), in.order());
  return detail::pool_backward(c, in_order(c, dy, in.order()), in, out, x.shape(), o, CUDNN_POOLING_MAX_DETERMINISTIC);
}

/// Padding counts as zeros in the averages, as in PyTorch's default.
inline tensor avg_pool2d(context& c, const tensor& x, const pool2d_options& o) {
  const shape to = native::pooled("avg_pool2d", x.shape(), o);
  return detail::pool_forward(c, x, to, o, CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING);
}
inline tensor avg_pool2d_backward(context& c, const tensor& dy, const shape& of_x, const pool2d_options& o) {
  require_same("avg_pool2d_backward", dy.shape(), native::pooled("avg_pool2d_backward", of_x, o));
  return detail::pool_backward(c, dy, {}, {}, of_x, o, CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING);
}

namespace detail {

inline bin_sizes bins_of(const shape& s, const std::array<std::int64_t, 2>& size, order places) {
  return {s[0] * s[1], s[1], {s[2], s[3]}, {size[0], size[1]}, places == order::channels_last};
}

}  // namespace detail

/// Returns: the averages of size[0] x size[1] bins. By PyTorch's rule for the borders, neighbouring bins may share
/// elements. Bins of one size are ordinary average pooling.
inline tensor adaptive_avg_pool2d(context& c, const tensor& x, const std::array<std::int64_t, 2>& size) {
  native::require_bins(x.shape(), size);
  const shape& s = x.shape();
  if (native::even_bins(s, size)) return avg_pool2d(c, x, native::bin_windows(s, size));
  const tensor y = c.make({s[0], s[1], size[0], size[1]}, x.precision(), x.order());
  with_storage(x.precision(), [&]<class T>(std::type_identity<T>) {
    adaptive_pooling(c.stream().get(), x.materialize_as<T>(), y.materialize_as<T>(),
                     detail::bins_of(s, size, x.order()));
  });
  return y;
}
inline tensor adaptive_avg_pool2d_backward(context& c, const tensor& dy, const shape& s) {
  require<error>(dy.shape().size() == 4 && s.size() == 4 && dy.shape()[0] == s[0] && dy.shape()[1] == s[1],
                 "adaptive_avg_pool2d_backward of dy {} for x {} (images and channels must be equal): fix the shapes",
                 text(dy.shape()), text(s));
  const std::array<std::int64_t, 2> size{dy.shape()[2], dy.shape()[3]};
  native::require_bins(s, size);
  if (native::even_bins(s, size)) return avg_pool2d_backward(c, dy, s, native::bin_windows(s, size));
  const tensor dx = c.make(s, dy.precision(), dy.order());
  with_storage(dy.precision(), [&]<class T>(std::type_identity<T>) {
    adaptive_pooling_backward(c.stream().get(), dy.materialize_as<T>(), dx.materialize_as<T>(),
                              detail::bins_of(s, size, dy.order()));
  });
  return dx;
}

}  // namespace comp::cuda
