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

struct backward_memory {
  std::uint32_t *k, *v, *k_pairs;               // of the head, tile by tile: transposed; two rows in one
  float *dk, *dv;                               // of the head, tile by tile, transposed: (wide,64)
  bf16 *q, *dy, *q_transposed, *dy_transposed;  // of 64 queries: (64,wide) and (wide,64)
  float *scores, *dshares, *dq, *dots;          // of a tile (64,64); of 64 queries: (64,wide), and the products dy y
  std::uint32_t *shares, *dscores, *pairs;      // of a tile, two rows in one: (32,64); (32,wide)
  bf16* dscore_rows;                            // (64,64)
  backward_memory(scratch& from, const attention_sizes& of)
      : k{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        v{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        k_pairs{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        dk{from.take<float>(tiles_in(of.keys) * tile * of.wide)},
        dv{from.take<float>(tiles_in(of.keys) * tile * of.wide)},
        q{from.take<bf16>(tile * of.wide)},
        dy{from.take<bf16>(tile * of.wide)},
        q_transposed{from.take<bf16>(tile * of.wide)},
        dy_transposed{from.take<bf16>(tile * of.wide)},
        scores{from.take<float>(tile * tile)},
        dshares{from.take<float>(tile * tile)},
        dq{from.take<float>(tile * of.wide)},
        dots{from.take<float>(tile)},
        shares{from.take<std::uint32_t>(tile * tile / 2)},
        dscores{from.take<std::uint32_t>(tile * tile / 2)},
        pairs{from.take<std::uint32_t>(of.words())},
        dscore_rows{from.take<bf16>(tile * tile)} {}
};

/// 16 probabilities with dropout, and the gradients of their scores.
struct softened {
  __m256i shares, dscores;
};
COMP_LIBTORCH_AVX512_INLINE softened soften_backward(const head_scores& in, const backward_memory& on,
                                                     std::int64_t query, std::int64_t r, std::int64_t key,
                                                     std::int64_t column, const query_sums& sums) {
  const __mmask16 lanes = query + r < in.of.queries ? first(in.of.seen_by(query + r) - key) : __mmask16{0};
  if (!lanes) return {_mm256_setzero_si256(), _mm256_setzero_si256()};
  const __m512 x = in.score(_mm512_loadu_ps(on.scores + r * tile + column), query + r, key, lanes);
  const __m512 relative = _mm512_sub_ps(x, _mm512_set1_ps(sums.largest[r]));
  const __m512 share = _mm512_maskz_mul_ps(lanes, exponential(relative), _mm512_set1_ps(sums.inverse[r]));
  const __m512 dshare = in.dropped(_mm512_loadu_ps(on.dshares + r * tile + column), query + r, key, lanes);
  const __m512 scaled = _mm512_mul_ps(share, _mm512_set1_ps(in.of.scale));
  const __m512 relative_to_mean = _mm512_fmsub_ps(dshare, _mm512_set1_ps(in.of.kept), _mm512_set1_ps(on.dots[r]));
  const __m512 dscore = _mm512_maskz_mul_ps(lanes, scaled, relative_to_mean);
  return {to_bf16(in.dropped(share, query + r, key, lanes)), to_bf16(dscore)};
}
COMP_LIBTORCH_AVX512 inline void soften_backward(const head_scores& in, const backward_memory& on, std::int64_t query,
                                                 std::int64_t rows, std::int64_t j, const query_sums& sums) {
  for (std::int64_t r = 0; r < padded(rows); r += 2) {
    for (std::int64_t column = 0; column < in.of.columns(j); column += 16) {
      const softened low = soften_backward(in, on, query, r, j * tile + column, column, sums);
      const softened high = soften_backward(in, on, query, r + 1, j * tile + column, column, sums);
      _mm512_storeu_si512(on.shares + r / 2 * tile + column, paired(low.shares, high.shares));
      _mm512_storeu_si512(on.dscores + r / 2 * tile + column, paired(low.dscores, high.dscores));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(on.dscore_rows + r * tile + column), low.dscores);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(on.dscore_rows + (r + 1) * tile + column), high.dscores);
    }
  }
}

/// What the backward reads and writes beside its case; all (B,H,L,D).
struct attention_gradients {
  at::Tensor dy, y, dq, dk, dv;
};

/// Reads 64 queries of q and dy, and the products dy y.
COMP_LIBTORCH_AVX512 inline void read_queries(const attention_case& c, const attention_gradients& g,
                                              const attention_sizes& of, const backward_memory& on, std::int64_t head,
                                              std::int64_t query, std::int64_t rows) {
  copy_rows(of, row_of(c.q, head, query), c.q.stride(2), rows, on.q);
  copy_rows(of, row_of(g.dy, head, query), g.dy.stride(2), rows, on.dy);
  pair_rows(on.q, of.wide, on.pairs);
  transpose_words(on.pairs, tile / 2, of.wide, on.q_transposed, tile / 2);
  pair_rows(on.dy, of.wide, on.pairs);
  transpose_words(on.pairs, tile / 2, of.wide, on.dy_transposed, tile / 2);
  const bf16* y = row_of(g.y, head, query);
  for (std::int64_t r = 0; r < rows; ++r) {
    __m512 dot = _mm512_setzero_ps();
    for (std::int64_t column = 0; column < of.width; column += 16) {
      const __mmask16 lanes = first(of.width - column);
      dot = _mm512_fmadd_ps(load_bf16(y + r * g.y.stride(2) + column, lanes),
                            load_bf16(on.dy + r * of.wide + column, lanes), dot);
    }
    on.dots[r] = _mm512_reduce_add_ps(dot);
  }
}

/// Fills dq, dk and dv.
inline void attend_backward(const attention_case& c, const attention_gradients& g, const query_sums& sums) {
  const attention_sizes of{c};
  const std::int64_t tiles = tiles_in(of.keys);
  on_threads<backward_memory>(of, of.all_heads, [&](const backward_memory& on, std::int64_t head) {
    const head_scores in{c, of, head};
    for (std::int64_t j = 0; j < tiles; ++j) {
      read_keys(of, c.k, head, j, on.q, on.k, on.k_pairs);
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
        multiply(m, of.wide, n, on.dscore_rows, tile, on.k_pairs + j * of.words(), of.wide, on.dq, of.wide, j > 0);
      }
      store_rows(of, on.dq, 1, nullptr, rows, row_to_write(g.dq, head, query), g.dq.stride(2));
    }
    for (std::int64_t j = 0; j < tiles; ++j) {
      const std::int64_t rows = std::min(tile, of.keys - j * tile);
      transpose_words(on.dk + j * tile * of.wide, of.wide, tile, on.dq, of.wide);
      store_rows(of, on.dq, 1, nullptr, rows, row_to_write(g.dk, head, j * tile), g.dk.stride(2));
      transpose_words(on.dv + j * tile * of.wide, of.wide, tile, on.dq, of.wide);
      store_rows(of, on.dq, of.kept, nullptr, rows, row_to_write(g.dv, head, j * tile), g.dv.stride(2));
    }
  });
}

#pragma GCC diagnostic pop
#endif

}  // namespace comp::libtorch::detail::attention
