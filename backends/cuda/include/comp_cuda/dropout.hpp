// SPDX-License-Identifier: Apache-2.0
// Dropout by the host's masks: a function of key and row-major position, made again for the backward.
#pragma once

#include "draw_counter.hpp"
#include "layout.hpp"
#include "pending.hpp"

namespace comp::cuda {

using native::dropout_key;

/// Zeroes each element with probability p and scales the rest by 1/(1-p). Element: its row-major position.
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
