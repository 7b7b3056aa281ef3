// SPDX-License-Identifier: Apache-2.0
// Tensors with the same values in another precision, order or shape. The heads of attention are another order of the
// channels; nothing moves if one of the two axes has size 1.
#pragma once

#include <comp_native/op/bmm.hpp>

#include "context.hpp"

namespace comp::cuda {

/// Rounds the values of `from` into `to`. Requires: both have the same elements in the same order. Does nothing if
/// their storage is the same.
inline void convert(context& c, const tensor& from, const tensor& to) {
  with_storage(from.precision(), [&]<class From>(std::type_identity<From>) {
    with_storage(to.precision(), [&]<class To>(std::type_identity<To>) {
      if constexpr (!std::is_same_v<From, To>) {
        const cast_job<From, To> job{from.materialize_as<From>(), to.materialize_as<To>(), from.size()};
        cast(c.stream().get(), std::span<const cast_job<From, To>>{&job, 1});
      }
    });
  });
}

/// Returns: t in precision p and its own order. Precisions with the same storage share the memory.
inline tensor cast(context& c, const tensor& t, precision p) {
  if (storage_of(p) == storage_of(t.precision())) return t.viewed(p);
  const tensor to = c.make(t.shape(), p, t.order());
  convert(c, t, to);
  return to;
}

/// Returns: a copy of t in other memory; an empty tensor for an empty one.
inline tensor duplicate(context& c, const tensor& t) {
  if (!t) return {};
  const tensor to = c.make_like(t);
  check(cudaMemcpyAsync(to.materialize(), t.materialize(),
                        static_cast<std::size_t>(t.size() * bytes_of(storage_of(t.precision()))),
                        cudaMemcpyDeviceToDevice, c.stream().get()),
        "copying a tensor");
  return to;
}

/// Returns: t in the order `places`. Only tensors with four axes have an order other than row-major.
inline tensor in_order(context& c, const tensor& t, order places) {
  if (t.order() == places || t.shape().size() != 4) return t;
  const shape& s = t.shape();
  const std::int64_t pixels = s[2] * s[3];
  const tensor to = c.make(s, t.precision(), places);
  const bool last = places == order::channels_last;
  with_storage(t.precision(), [&]<class T>(std::type_identity<T>) {
    transpose(c.stream().get(), t.materialize_as<T>(), to.materialize_as<T>(), s[0], last ? s[1] : pixels,
              last ? pixels : s[1]);
  });
  return to;
}
inline tensor row_major(context& c, const tensor& t) { return in_order(c, t, order::row_major); }

/// Returns: t with another shape, its elements counted row-major. Only a channels_last t is copied.
/// Throws: error for another number of elements.
inline tensor reshape(context& c, const tensor& t, const shape& extents) {
  require<error>(elements(extents) == t.size(),
                 "reshape of {} to {} (it has {} elements, not {}): keep the number of elements", text(t.shape()),
                 text(extents), t.size(), elements(extents));
  return extents == t.shape() ? t : row_major(c, t).viewed(extents);
}

namespace detail {

/// x lies in memory as (b,i,j,d). Returns: a tensor of shape `to` that lies as (b,j,i,d).
inline tensor middle_swapped(context& c, const tensor& x, std::int64_t i, std::int64_t j, std::int64_t d,
                             const shape& to) {
  if (i == 1 || j == 1) return x.viewed(to);
  const tensor y = c.make(to, x.precision());
  with_storage(x.precision(), [&]<class T>(std::type_identity<T>) {
    swap_middle<T>(c.stream().get(), x.materialize_as<T>(), y.materialize_as<T>(), x.size() / (i * j * d), i, j, d);
  });
  return y;
}

}  // namespace detail

/// x is (B,T,C). Returns: (B,heads,T,C/heads).
inline tensor split_heads(context& c, const tensor& x, std::int64_t heads) {
  const shape to = native::split(x.shape(), heads);
  return detail::middle_swapped(c, x, to[2], heads, to[3], to);
}
/// x is (B,H,T,D). Returns: (B,T,H*D).
inline tensor merge_heads(context& c, const tensor& x) {
  const shape &s = x.shape(), to = native::merged(s);
  return detail::middle_swapped(c, row_major(c, x), s[1], s[2], s[3], to);
}

}  // namespace comp::cuda
