// SPDX-License-Identifier: Apache-2.0
// Batched products of matrices. The matrices of a batch lie one after another, so one call of cuBLASLt takes them all.
#pragma once

#include <algorithm>

#include "layout.hpp"
#include "matmul.hpp"

namespace comp::cuda {

namespace detail {

/// Returns: the last two axes of t as a matrix; the axes before them are the batch.
inline matrix last_two(const tensor& t, bool transposed) {
  const shape& s = t.shape();
  return {t.materialize(), data_type(storage_of(t.precision())), s[s.size() - 2], s[s.size() - 1], transposed};
}

}  // namespace detail

/// alpha op(a) op(b); op transposes the last two axes for transpose_a and transpose_b. op(a) is (...,M,K), op(b) is
/// (...,K,N). Returns: (...,M,N) in the precision of a.
inline tensor bmm(context& c, const tensor& a, const tensor& b, bool transpose_a, bool transpose_b, double alpha = 1) {
  for (const tensor* t : {&a, &b}) require_some("bmm", t->shape());
  require<error>(a.shape().size() >= 2 && a.shape().size() == b.shape().size(),
                 "bmm of {} and {} (they need as many axes): reshape one of them", text(a.shape()), text(b.shape()));
  const precision p = a.precision();
  require<unsupported>(!is_fp8(p), "bmm in {} (of matrix products only linear has FP8): use bf16", name(p));
  const tensor left = row_major(c, a), right = row_major(c, cast(c, b, p));
  const matrix l = detail::last_two(left, transpose_a), r = detail::last_two(right, transpose_b);
  require<error>(
      l.out_columns() == r.out_rows() && std::equal(a.shape().begin(), a.shape().end() - 2, b.shape().begin()),
      "bmm of {}{} and {}{} (the inner sizes and the batches must be equal): fix the shapes", text(a.shape()),
      transpose_a ? "'" : "", text(b.shape()), transpose_b ? "'" : "");
  shape extents(a.shape().begin(), a.shape().end() - 2);
  const index batch = elements(extents);
  extents.insert(extents.end(), {l.out_rows(), r.out_columns()});
  const tensor y = c.make(std::move(extents), p);
  multiply(c, {.a = l,
               .b = r,
               .to = y.materialize(),
               .type = data_type(storage_of(p)),
               .tf32 = p == precision::tf32,
               .batch = batch,
               .alpha = static_cast<float>(alpha)});
  return y;
}

}  // namespace comp::cuda
