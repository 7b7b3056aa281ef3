// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <comp_native/op/call.hpp>

namespace comp::native {

/// The shape of x (B,T,C) with its heads split. Returns: (B,heads,T,C/heads). Throws: error.
inline shape split(const shape& x, std::int64_t heads) {
  require_some("split_heads", x);
  require<error>(x.size() == 3 && heads > 0 && x[2] % heads == 0,
                 "split_heads of x {} into {} (it takes (B,T,C), C a multiple of the heads): fix the sizes", text(x),
                 heads);
  return {x[0], heads, x[1], x[2] / heads};
}
/// The shape of x (B,H,T,D) with its heads merged. Returns: (B,T,H*D). Throws: error.
inline shape merged(const shape& x) {
  require_some("merge_heads", x);
  require<error>(x.size() == 4, "merge_heads of x {} (it takes (B,H,T,D)): reshape it", text(x));
  return {x[0], x[2], x[1] * x[3]};
}

namespace op {

struct bmm {                 // alpha a b over the last two axes
  std::int64_t heads_a = 0;  // above 0: a (B,T,C) is split into (B,heads,T,C/heads) first
  std::int64_t heads_b = 0;  // the same for b
  bool transpose_b = false;
  bool merge = false;  // true: the result (B,heads,T,D) becomes (B,T,heads*D)
  double alpha = 1;

  constexpr std::string_view kind() const { return "bmm"; }
  constexpr auto settings() const { return std::tuple{heads_a, heads_b, transpose_b, merge, alpha}; }
  shape output(std::span<const shape> x) const {
    const shape a = heads_a ? split(x[0], heads_a) : x[0], b = heads_b ? split(x[1], heads_b) : x[1];
    const bool fits = a.size() == b.size() && a.size() >= 3 && std::equal(a.begin(), a.end() - 2, b.begin()) &&
                      a.back() == b[b.size() - (transpose_b ? 1 : 2)];
    require<error>(fits, "bmm of {} by {}{} (inner extents and all before the last two must agree): change one of them",
                   text(a), text(b), transpose_b ? " transposed" : "");
    shape y = a;
    y.back() = b[b.size() - (transpose_b ? 2 : 1)];
    return merge ? merged(y) : y;
  }
  void cost(const cost_call& c) const {
    const shape &a = c.inputs[0], &b = c.inputs[1];
    const std::int64_t heads = std::max<std::int64_t>({heads_a, heads_b, 1});
    const std::int64_t m = a[a.size() - 2], k = a.back() / (heads_a ? heads : 1);
    const std::int64_t n = transpose_b ? b[b.size() - 2] : b.back() / (heads_b ? heads : 1);
    c.matrix(elements(c.output) / (m * n), m, n, k);
  }
  auto forward(const auto& c) const {
    c.left.kept = {heads_a ? c.device.split_heads(c.x[0], heads_a) : c.x[0],
                   heads_b ? c.device.split_heads(c.x[1], heads_b) : c.x[1]};
    const auto y = c.device.bmm(c.left.kept[0], c.left.kept[1], false, transpose_b, alpha);
    return merge ? c.device.merge_heads(y) : y;
  }
  auto backward(const auto& c) const {
    auto& d = c.device;
    const auto &a = c.kept(0), &b = c.kept(1);
    const auto g = merge ? d.split_heads(c.dy, heads_a ? heads_a : heads_b) : c.dy;
    auto dx = c.gradients();
    if (c.need[0]) dx[0] = d.bmm(g, b, false, !transpose_b, alpha);
    if (c.need[1]) dx[1] = transpose_b ? d.bmm(g, a, true, false, alpha) : d.bmm(a, g, true, false, alpha);
    if (c.need[0] && heads_a) dx[0] = d.merge_heads(dx[0]);
    if (c.need[1] && heads_b) dx[1] = d.merge_heads(dx[1]);
    return dx;
  }
};

}  // namespace op
}  // namespace comp::native
