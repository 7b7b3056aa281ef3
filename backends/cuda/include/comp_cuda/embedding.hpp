// SPDX-License-Identifier: Apache-2.0
// Rows of a table by index, and the gradient of the table. Rows that were read several times are added up in a fixed
// order, so that the gradient has the same bits in each run.
#pragma once

#include "parameter.hpp"

namespace comp::cuda {

namespace detail {

/// Throws: error for an index that the table does not have. The range is known since the upload, so nothing waits.
inline void require_indices(const char* operation, const indices& at, std::int64_t rows) {
  const index_range& r = at.range();
  require<error>(r.least >= 0 && r.most < rows, "{} of index {} (the table has {} rows): use indices from 0 to {}",
                 operation, r.least < 0 ? r.least : r.most, rows, rows - 1);
}

}  // namespace detail

/// at is (...), w is (V,C). Returns: (...,C) in precision `p`.
inline tensor embedding(context& c, const indices& at, parameter& w, precision p) {
  require_some("embedding", at.shape());
  detail::require_indices("embedding", at, w.extents[0]);
  shape extents = at.shape();
  extents.push_back(w.extents[1]);
  const tensor y = c.make(extents, p);
  with_storage(p, [&]<class T>(std::type_identity<T>) {
    embedding<T>(c.stream().get(), w.value.materialize_as<float>(), at.data(), y.materialize_as<T>(), at.size(),
                 w.extents[1], w.extents[0]);
  });
  return y;
}

/// Adds each row of dy to the gradient of the table's row that it came from.
inline void embedding_backward(context& c, const tensor& dy, const indices& at, parameter& w) {
  shape expected = at.shape();
  expected.push_back(w.extents[1]);
  require_same("embedding_backward", dy.shape(), expected);
  detail::require_indices("embedding_backward", at, w.extents[0]);
  if (!w.trainable) return;
  const tensor g = row_major(c, dy);
  const gradient_place to = gradient_of(c, w);
  if (!to.adds) c.clear(to.at, w.value.size() * static_cast<std::int64_t>(sizeof(float)));
  with_storage(g.precision(), [&]<class T>(std::type_identity<T>) {
    embedding_backward<T>(c.stream().get(), g.materialize_as<T>(), at.data(), to.at, at.size(), w.extents[1],
                          w.extents[0], c.scratch_of<float>(embedding_scratch(at.size(), w.extents[1], w.extents[0])));
  });
}

}  // namespace comp::cuda
