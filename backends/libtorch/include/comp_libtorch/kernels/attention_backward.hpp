// SPDX-License-Identifier: Apache-2.0
// Attention's backward over all heads, in the tiles of attention_tiles.hpp, on LibTorch's threads. It computes the
// probabilities of a tile again, from what the forward kept of each query, and makes all that follows from them.
// A head is one thread's, so that bits do not depend on the number of threads.
// Source: Dao 2023, "FlashAttention-2" (arXiv 2307.08691).
#pragma once

#include <comp_libtorch/kernels/attention_forward.hpp>

namespace comp::libtorch::detail::attention {

#if COMP_LIBTORCH_ATTENTION
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 sees it within its own vector functions
#endif

template <class T>
struct backward_memory {
  std::uint32_t *k, *v, *k_rows;             // of the head, tile by tile, as right sides; k and v are transposed
  float *dk, *dv;                            // of the head, tile by tile, transposed: (wide,64)
  T *q, *dy, *q_transposed, *dy_transposed;  // of 64 queries: (64,wide) and (wide,64)
  float *scores, *dshares, *dq, *dots;       // of a tile (64,64); of 64 queries: (64,wide), and the products dy y
  std::uint32_t *shares, *dscores, *words;   // as right sides: of a tile (64,64); of 64 queries (64,wide)
  T* dscore_rows;                            // (64,64); in FP32 these are `dscores`
  backward_memory(scratch& from, const attention_sizes<T>& of)
      : k{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        v{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        k_rows{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        dk{from.take<float>(tiles_in(of.keys) * tile * of.wide)},
        dv{from.take<float>(tiles_in(of.keys) * tile * of.wide)},
        q{from.take<T>(tile * of.wide)},
        dy{from.take<T>(tile * of.wide)},
        q_transposed{from.take<T>(tile * of.wide)},
        dy_transposed{from.take<T>(tile * of.wide)},
        scores{from.take<float>(tile * tile)},
        dshares{from.take<float>(tile * tile)},
        dq{from.take<float>(tile * of.wide)},
        dots{from.take<float>(tile)},
        shares{from.take<std::uint32_t>(tile * tile / rows_in_word<T>)},
        dscores{from.take<std::uint32_t>(tile * tile / rows_in_word<T>)},
        words{from.take<std::uint32_t>(of.words())},
        dscore_rows{rows_in_word<T> == 1 ? reinterpret_cast<T*>(dscores) : from.take<T>(tile * tile)} {}
};

/// 16 probabilities with dropout, and the gradients of their scores.
struct softened {
  __m512 shares, dscores;
};
template <class T>
COMP_LIBTORCH_AVX512_INLINE softened soften_backward(const head_scores<T>& in, const backward_memory<T>& on,
                                                     std::int64_t query, std::int64_t r, std::int64_t key,
                                                     std::int64_t column, const query_sums& sums) {
  const __mmask16 lanes = query + r < in.of.queries ? first(in.of.seen_by(query + r) - key) : __mmask16{0};
  if (!lanes) return {_mm512_setzero_ps(), _mm512_setzero_ps()};
  const __m512 x = in.score(_mm512_loadu_ps(on.scores + r * tile + column), query + r, key, lanes);
  const __m512 relative = _mm512_sub_ps(x, _mm512_set1_ps(sums.largest[r]));
  const __m512 share = _mm512_maskz_mul_ps(lanes, exponential(relative), _mm512_set1_ps(sums.inverse[r]));
  const __m512 dshare = in.dropped(_mm512_loadu_ps(on.dshares + r * tile + column), query + r, key, lanes);
  const __m512 scaled = _mm512_mul_ps(share, _mm512_set1_ps(in.of.scale));
  const __m512 relative_to_mean = _mm512_fmsub_ps(dshare, _mm512_set1_ps(in.of.kept), _mm512_set1_ps(on.dots[r]));
  return {in.dropped(share, query + r, key, lanes), _mm512_maskz_mul_ps(lanes, scaled, relative_to_mean)};
}
template <class T>
COMP_LIBTORCH_AVX512 void soften_backward(const head_scores<T>& in, const backward_memory<T>& on, std::int64_t query,
                                          std::int64_t rows, std::int64_t j, const query_sums& sums) {
  for (std::int64_t r = 0; r < padded(rows); r += 2) {
    for (std::int64_t column = 0; column < in.of.columns(j); column += 16) {
      const softened even = soften_backward(in, on, query, r, j * tile + column, column, sums);
      const softened odd = soften_backward(in, on, query, r + 1, j * tile + column, column, sums);
      store_words<T>(on.shares, r, column, even.shares, odd.shares);
      store_words<T>(on.dscores, r, column, even.dscores, odd.dscores);
      if constexpr (rows_in_word<T> == 2) {
        store(on.dscore_rows + r * tile + column, even.dscores);
        store(on.dscore_rows + (r + 1) * tile + column, odd.dscores);
      }
    }
  }
}

/// What the backward reads and writes beside its case; all (B,H,L,D).
struct attention_gradients {
  at::Tensor dy, y, dq, dk, dv;
};

/// Reads 64 queries of q and dy, and the products dy y.
template <class T>
COMP_LIBTORCH_AVX512 void read_queries(const attention_case& c, const attention_gradients& g,
                                       const attention_sizes<T>& of, const backward_memory<T>& on, std::int64_t head,
                                       std::int64_t query, std::int64_t rows) {
  const auto transpose = [&](const T* from, T* to) {
    to_words(from, of.wide, on.words);
    transpose_words(on.words, tile / rows_in_word<T>, of.wide, to, tile / rows_in_word<T>);
  };
  copy_rows(of, row_of<T>(c.q, head, query), c.q.stride(2), rows, on.q);
  copy_rows(of, row_of<T>(g.dy, head, query), g.dy.stride(2), rows, on.dy);
  transpose(on.q, on.q_transposed);
  transpose(on.dy, on.dy_transposed);
  const T* y = row_of<T>(g.y, head, query);
  for (std::int64_t r = 0; r < rows; ++r) {
    __m512 dot = _mm512_setzero_ps();
    for (std::int64_t column = 0; column < of.width; column += 16) {
      const __mmask16 lanes = first(of.width - column);
      dot =
          _mm512_fmadd_ps(load(y + r * g.y.stride(2) + column, lanes), load(on.dy + r * of.wide + column, lanes), dot);
    }
    on.dots[r] = _mm512_reduce_add_ps(dot);
  }
}

/// Fills dq, dk and dv.
template <class T>
void attend_backward(const attention_case& c, const attention_gradients& g, const query_sums& sums) {
  const attention_sizes<T> of{c};
  const std::int64_t tiles = tiles_in(of.keys);
  on_threads<backward_memory<T>>(of, of.all_heads, [&](const backward_memory<T>& on, std::int64_t head) {
    const head_scores<T> in{c, of, head};
    for (std::int64_t j = 0; j < tiles; ++j) {
      read_keys(of, c.k, head, j, on.q, on.k, on.k_rows);
      read_keys(of, c.v, head, j, on.q, on.v, nullptr);
    }
    std::fill_n(on.dk, tiles * tile * of.wide, 0.0F);
    std::fill_n(on.dv, tiles * tile * of.wide, 0.0F);
    for (std::int64_t query = 0; query < of.queries; query += tile) {
      const std::int64_t rows = std::min(tile, of.queries - query), m = padded(rows);
      read_queries(c, g, of, on, head, query, rows);
      const query_sums own{sums.largest + head * of.queries + query, sums.inverse + head * of.queries + query};
      for (std::int64_t j = 0; j < tiles_in(of.seen_by(query + rows - 1)); ++j) {
        const std::int64_t n = of.columns(j);
        float *dk = on.dk + j * tile * of.wide, *dv = on.dv + j * tile * of.wide;
        multiply(m, n, of.wide, on.q, of.wide, on.k + j * of.words(), tile, on.scores, tile, false);
        multiply(m, n, of.wide, on.dy, of.wide, on.v + j * of.words(), tile, on.dshares, tile, false);
        soften_backward(in, on, query, rows, j, own);
        multiply(of.wide, n, m, on.dy_transposed, tile, on.shares, tile, dv, tile, true);
        multiply(of.wide, n, m, on.q_transposed, tile, on.dscores, tile, dk, tile, true);
        multiply(m, of.wide, n, on.dscore_rows, tile, on.k_rows + j * of.words(), of.wide, on.dq, of.wide, j > 0);
      }
      store_rows(of, on.dq, 1, nullptr, rows, row_to_write<T>(g.dq, head, query), g.dq.stride(2));
    }
    for (std::int64_t j = 0; j < tiles; ++j) {
      const std::int64_t rows = std::min(tile, of.keys - j * tile);
      transpose_words(on.dk + j * tile * of.wide, of.wide, tile, on.dq, of.wide);
      store_rows(of, on.dq, 1, nullptr, rows, row_to_write<T>(g.dk, head, j * tile), g.dk.stride(2));
      transpose_words(on.dv + j * tile * of.wide, of.wide, tile, on.dq, of.wide);
      store_rows(of, on.dq, of.kept, nullptr, rows, row_to_write<T>(g.dv, head, j * tile), g.dv.stride(2));
    }
  });
}

#pragma GCC diagnostic pop
#endif

}  // namespace comp::libtorch::detail::attention
