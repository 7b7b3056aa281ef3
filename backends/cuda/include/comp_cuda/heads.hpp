// SPDX-License-Identifier: Apache-2.0
// Splits channels into the heads of attention, and merges them again. Both exchange two axes in one pass over the data,
// or move nothing if one of the axes has size 1.
#pragma once

#include <comp_native/op/bmm.hpp>

#include "layout.hpp"

namespace comp::cuda {

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
