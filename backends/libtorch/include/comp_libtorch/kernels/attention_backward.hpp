// SPDX-License-Identifier: Apache-2.0
// Attention's backward over all heads, in the tiles of attention_tiles.hpp, on LibTorch's threads. It computes the
// probabilities of a tile again, from what the forward kept of each query, and makes all that follows from them.
// A head is one thread's, so that bits do not depend on the number of threads.
// Source: Dao 2023, "FlashAttention-2" (arXiv 2307.08691).
#pragma once

#include <comp_libtorch/kernels/attention_forward.hpp>

namespace comp::libtorch::detail::attention {

#if COMP_LIBTORCH_ATTENTION
/// What the backward reads and writes beside its case; all (B,H,L,D). y is in FP32, as it was before it was rounded.
struct attention_gradients {
  at::Tensor dy, y, dq, dk, dv;
};

/// Reads 64 queries of q and dy, and the products dy y.
template <class Vectors, class T>
void read_queries(const attention_case& c, const attention_gradients& g, const attention_sizes<T>& of,
                  const backward_memory<T>& on, std::int64_t head, std::int64_t query, std::int64_t rows) {
  const auto transpose = [&](const T* from, T* to) {
    Vectors::to_words(from, of.wide, on.words);
    Vectors::transpose_words(on.words, tile / rows_in_word<T>, of.wide, to, tile / rows_in_word<T>);
  };
  copy_rows(of, row_of<T>(c.q, head, query), c.q.stride(2), rows, on.q);
  copy_rows(of, row_of<T>(g.dy, head, query), g.dy.stride(2), rows, on.dy);
  transpose(on.q, on.q_transposed);
  transpose(on.dy, on.dy_transposed);
  Vectors::dot_rows(of, row_of<float>(g.y, head, query), g.y.stride(2), on.dy, rows, on.dots);
}

/// Fills dq, dk and dv. Vectors: as in the forward.
template <class Vectors, class T>
void attend_backward(const attention_case& c, const attention_gradients& g, const query_sums& sums) {
  const attention_sizes<T> of{c};
  const std::int64_t tiles = tiles_in(of.keys);
  on_threads<backward_memory<T>>(of, of.all_heads, [&](const backward_memory<T>& on, std::int64_t head) {
    const head_scores<T> in{c, of, head};
    for (std::int64_t j = 0; j < tiles; ++j) {
      read_keys<Vectors>(of, c.k, head, j, on.q, on.k, on.k_rows);
      read_keys<Vectors>(of, c.v, head, j, on.q, on.v, nullptr);
    }
    std::fill_n(on.dk, tiles * tile * of.wide, 0.0F);
    std::fill_n(on.dv, tiles * tile * of.wide, 0.0F);
    for (std::int64_t query = 0; query < of.queries; query += tile) {
      const std::int64_t rows = std::min(tile, of.queries - query), m = padded(rows);
      read_queries<Vectors>(c, g, of, on, head, query, rows);
      const query_sums own{sums.largest + head * of.queries + query, sums.inverse + head * of.queries + query};
      for (std::int64_t j = 0; j < tiles_in(of.visible_to(query + rows - 1)); ++j) {
        const std::int64_t n = of.columns(j);
        float *dk = on.dk + j * tile * of.wide, *dv = on.dv + j * tile * of.wide;
        multiply(m, n, of.wide, on.q, of.wide, on.k + j * of.words(), tile, on.scores, tile, false);
        multiply(m, n, of.wide, on.dy, of.wide, on.v + j * of.words(), tile, on.dshares, tile, false);
        Vectors::soften_backward(in, on, query, rows, j, own);
        multiply(of.wide, n, m, on.dy_transposed, tile, on.shares, tile, dv, tile, true);
        multiply(of.wide, n, m, on.q_transposed, tile, on.dscores, tile, dk, tile, true);
        multiply(m, of.wide, n, on.dscore_rows, tile, on.k_rows + j * of.words(), of.wide, on.dq, of.wide, j > 0);
      }
      Vectors::store_rows(of, on.dq, 1, nullptr, rows, row_to_write<T>(g.dq, head, query), g.dq.stride(2));
    }
    for (std::int64_t j = 0; j < tiles; ++j) {
      const std::int64_t rows = std::min(tile, of.keys - j * tile);
      Vectors::transpose_words(on.dk + j * tile * of.wide, of.wide, tile, on.dq, of.wide);
      Vectors::store_rows(of, on.dq, 1, nullptr, rows, row_to_write<T>(g.dk, head, j * tile), g.dk.stride(2));
      Vectors::transpose_words(on.dv + j * tile * of.wide, of.wide, tile, on.dq, of.wide);
      Vectors::store_rows(of, on.dq, of.kept, nullptr, rows, row_to_write<T>(g.dv, head, j * tile), g.dv.stride(2));
    }
  });
}

#endif

}  // namespace comp::libtorch::detail::attention
