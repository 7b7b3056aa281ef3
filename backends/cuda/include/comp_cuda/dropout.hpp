// SPDX-License-Identifier: Apache-2.0
// Dropout with the masks of the host device: a mask is a function of the key and of an element's row-major position.
// The backward computes it again, so that no mask is stored.
#pragma once

#include "draw_counter.hpp"
#include "layout.hpp"
#include "pending.hpp"

namespace comp::cuda {

using native::dropout_key;

/// Zeroes each element with probability p and scales the others by 1/(1-p). x becomes row-major, since masks count so.
inline tensor dropout(context& c, const tensor& x, double p, const dropout_key& key) {
  require_some("dropout", x.shape());
  require<error>(p >= 0 && p <= 1, "dropout with p = {} (it is a probability): use 0 to 1", p);
  if (p == 0) return x;
  const auto [counted, draws] = c.part<draw_counter>()(key);
  return apply(c, row_major(c, x), {{.kind = step_kind::dropout, .mask = {p, counted}, .draws = draws}});
}
inline tensor dropout_backward(context& c, const tensor& dy, double p, const dropout_key& key) {
  return dropout(c, dy, p, key);
}

}  // namespace comp::cuda
