// SPDX-License-Identifier: Apache-2.0
// Embeddings: rows of a table by index, and their gradient. Gradients are added in the order of the indices, so that
// they have the same bits each time.
#pragma once

#include <cstdint>
#include <cstring>

#include "context.hpp"
#include "convert.hpp"
#include "parameter.hpp"
#include "transfer.hpp"

namespace comp::host {

namespace detail {

inline void require_indices(const char* operation, const indices& at, std::int64_t rows) {
  for (const std::int32_t i : at.values()) {
    require<error>(i >= 0 && i < rows, "{} of index {} (the table has {} rows): use indices from 0 to {}", operation, i,
                   rows, rows - 1);
  }
}

}  // namespace detail

/// Looks up rows. at is (...), w is (V,C). Returns: (...,C) in precision `p`.
inline tensor embedding(context& c, const indices& at, parameter& w, precision p) {
  require_supported(p);
  require_some("embedding", at.shape());
  detail::require_indices("embedding", at, w.extents[0]);
  const auto width = static_cast<std::size_t>(w.extents[1]);
  shape extents = at.shape();
  extents.push_back(w.extents[1]);
  const tensor y = c.make_plain(extents, p);
  const float* table = plain_values(c, w);
  with_storage(p, [&](auto* s) {
    auto* to = static_cast<decltype(s)>(y.data());
    c.run_kernel([&] {
      launch_rows(at.values().size(), width, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i)
          convert(table + static_cast<std::size_t>(at.values()[i]) * width, to + i * width, width);
      });
    });
  });
  return y;
}

/// Adds the rows of dy to the gradients of the table's rows that they came from. Each thread owns a range of the
/// table's rows and reads all indices, because an index may occur many times and threads would otherwise add to the
/// same row.
inline void embedding_backward(context& c, const tensor& dy, const indices& at, parameter& w) {
  shape expected = at.shape();
  expected.push_back(w.extents[1]);
  require_same("embedding_backward", dy.shape(), expected);
  detail::require_indices("embedding_backward", at, w.extents[0]);
  if (!w.trainable) return;
  const tensor g = row_major(c, cast(c, dy, precision::fp32));
  const tensor dw = gradient_target(c, w, c.layouts.plain(w.extents, precision::fp32));
  const auto width = static_cast<std::size_t>(w.extents[1]);
  const auto* from = g.as<float>();
  auto* to = dw.as<float>();
  c.run_kernel([&] {
    launch_rows(static_cast<std::size_t>(w.extents[0]), width * 16,
                [&, from, to](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
                  std::memset(to + begin * width, 0, (end - begin) * width * sizeof(float));
                  for (std::size_t i = 0; i < at.values().size(); ++i) {
                    const auto row = static_cast<std::size_t>(at.values()[i]);
                    if (row < begin || row >= end) continue;
                    float* sum = to + row * width;
                    const float* term = from + i * width;
#pragma omp simd
                    for (std::size_t k = 0; k < width; ++k) sum[k] += term[k];
                  }
                });
  });
  add_gradient(c, w, dw);
}

}  // namespace comp::host
