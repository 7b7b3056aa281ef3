// SPDX-License-Identifier: Apache-2.0
// Softmax and log-softmax over the last axis, and their gradients.
#pragma once

#include <comp_native/op/softmax.hpp>

#include "layout.hpp"

namespace comp::cuda {

namespace detail {

/// lengths: how many columns count in each example of x, for softmax_kind::padded.
inline tensor softmax_forward(context& c, softmax_kind kind, const tensor& x, const std::int32_t* lengths = nullptr) {
  const tensor in = row_major(c, x), y = c.make_like(in);
  const std::int64_t width = x.shape().back();
  with_storage(in.precision(), [&]<class T>(std::type_identity<T>) {
    softmax<T>(c.stream().get(), in.materialize_as<T>(), y.materialize_as<T>(), in.size() / width, width,
               {kind, lengths, in.size() / width / x.shape()[0]});
  });
  return y;
}
inline tensor softmax_gradient(context& c, softmax_kind kind, const tensor& dy, const tensor& y) {
  require_same("softmax_backward", dy.shape(), y.shape());
  require_some("softmax_backward", dy.shape());
  const tensor g = row_major(c, dy), at = row_major(c, cast(c, y, dy.precision())), dx = c.make_like(g);
  const std::int64_t width = y.shape().back();
  with_storage(g.precision(), [&]<class T>(std::type_identity<T>) {
    softmax_backward<T>(c.stream().get(), g.materialize_as<T>(), at.materialize_as<T>(), dx.materialize_as<T>(),
                        g.size() / width, width, kind);
  });
  return dx;
}

}  // namespace detail

/// Returns: the softmax over the last axis. causal: x is (...,T,T), and the columns right of the diagonal count as
/// minus infinity.
inline tensor softmax(context& c, const tensor& x, bool causal) {
  require_some("softmax", x.shape());
  if (causal) native::require_causal(x.shape());
  return detail::softmax_forward(c, causal ? softmax_kind::causal : softmax_kind::full, x);
}
/// x is (B,...,T), lengths is (B). In each example only the first `length` columns count; the others count as minus
/// infinity. A row without any column that counts is 0.
inline tensor padded_softmax(context& c, const tensor& x, const indices& lengths) {
  require_some("softmax", x.shape());
  native::require_lengths(x.shape(), lengths.size(), lengths.range().least, lengths.range().most);
  return detail::softmax_forward(c, softmax_kind::padded, x, lengths.data());
}
inline tensor softmax_backward(context& c, const tensor& dy, const tensor& y, bool causal) {
  if (causal) native::require_causal(y.shape());
  return detail::softmax_gradient(c, causal ? softmax_kind::causal : softmax_kind::full, dy, y);
}
inline tensor log_softmax(context& c, const tensor& x) {
  require_some("log_softmax", x.shape());
  return detail::softmax_forward(c, softmax_kind::log, x);
}
inline tensor log_softmax_backward(context& c, const tensor& dy, const tensor& y) {
  return detail::softmax_gradient(c, softmax_kind::log, dy, y);
}

}  // namespace comp::cuda
