// SPDX-License-Identifier: Apache-2.0
// Batched matrix products by oneDNN's matmul on strided views, and the views that attention needs.
// Heads are split and merged without copies. A product whose right side is a view of heads, and not transposed, writes
// its result in the same layout, so that merge_heads finds the rows in place.
#pragma once

#include <comp_native/op/bmm.hpp>
#include <cstdint>
#include <utility>

#include "context.hpp"
#include "transfer.hpp"

namespace comp::host {

namespace detail {

/// The layout of a tensor (B,H,T,D) in the memory of (B,T,H*D).
inline const layout* heads_layout(context& c, const shape& s, precision p) {
  return c.layouts.strided(s, {s[1] * s[2] * s[3], s[3], s[1] * s[3], 1}, p);
}
inline const layout* transposed(context& c, const layout* from) {
  shape s = from->extents;
  const auto n = s.size();
  shape steps = onednn::strides_of(from->desc);
  std::swap(s[n - 1], s[n - 2]);
  std::swap(steps[n - 1], steps[n - 2]);
  return c.layouts.strided(s, steps, from->precision);
}
/// Returns `t` in a layout that matmul takes here: strides are fine, blocked layouts are made row-major.
inline tensor multipliable(context& c, const tensor& t) {
  const tensor in = computable(c, t);
  return onednn::inner_blocks(in.layout()->desc) == 0 ? in : row_major(c, in);
}

}  // namespace detail

/// x is (B,T,C). Returns: (B,heads,T,C/heads), a view of x if x is row-major.
inline tensor split_heads(context& c, const tensor& x, std::int64_t heads) {
  const shape s = native::split(x.shape(), heads);
  const tensor rows = row_major(c, x);
  return rows.viewed(s, detail::heads_layout(c, s, x.precision()));
}
/// x is (B,H,T,D). Returns: (B,T,H*D), a view of x if x is a view of heads.
inline tensor merge_heads(context& c, const tensor& x) {
  const shape merged = native::merged(x.shape());
  const tensor rows = placed(c, x, detail::heads_layout(c, x.shape(), x.precision()));
  return rows.viewed(merged, c.layouts.plain(merged, x.precision()));
}

/// Computes alpha op(a) op(b); op transposes the last two axes if asked. a is (...,M,K), b is (...,K,N).
/// Returns: (...,M,N).
inline tensor bmm(context& c, const tensor& a, const tensor& b, bool transpose_a, bool transpose_b, double alpha = 1) {
  require_some("bmm", a.shape());
  const tensor left = detail::multipliable(c, a), right = detail::multipliable(c, cast(c, b, a.precision()));
  require<error>(a.shape().size() >= 2 && a.shape().size() == b.shape().size(),
                 "bmm of {} and {} (they need as many axes): reshape one of them", text(a.shape()), text(b.shape()));
  const layout* l = transpose_a ? detail::transposed(c, left.layout()) : left.layout();
  const layout* r = transpose_b ? detail::transposed(c, right.layout()) : right.layout();
  const std::size_t n = l->extents.size();
  require<error>(l->extents[n - 1] == r->extents[n - 2] &&
                     std::equal(l->extents.begin(), l->extents.end() - 2, r->extents.begin()),
                 "bmm of {}{} and {}{} (the inner sizes and the batches must be equal): fix the shapes",
                 text(a.shape()), transpose_a ? "'" : "", text(b.shape()), transpose_b ? "'" : "");
  shape extents = l->extents;
  extents[n - 1] = r->extents[n - 1];
  const bool as_heads = n == 4 && !transpose_b && !right.layout()->plain;
  const layout* places =
      as_heads ? detail::heads_layout(c, extents, left.precision()) : c.layouts.plain(extents, left.precision());
  auto& run =
      c.cached(key{operation::bmm, l->id, r->id, __builtin_bit_cast(std::int32_t, static_cast<float>(alpha))}, [&] {
        dnnl::primitive_attr attributes = c.user_scratch;
        if (alpha != 1) {
          attributes = {};
          attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
          onednn::scale_result(attributes, static_cast<float>(alpha));
        }
        const auto pd = onednn::described<dnnl::matmul>(c.engine, attributes, l->desc, r->desc, places->desc);
        return c.make_primitive(pd,
                                {{DNNL_ARG_SRC, l->desc}, {DNNL_ARG_WEIGHTS, r->desc}, {DNNL_ARG_DST, places->desc}});
      });
  const tensor y = c.make(places);
  c.run(run, {{DNNL_ARG_SRC, left.data()}, {DNNL_ARG_WEIGHTS, right.data()}, {DNNL_ARG_DST, y.data()}});
  return cast(c, y, a.precision());
}

}  // namespace comp::host
