// SPDX-License-Identifier: Apache-2.0
// Attention's forward and backward over all heads, in the tiles of attention_tiles.hpp, on LibTorch's threads.
// The forward makes all scores of 64 queries, softens them and multiplies them with v. It keeps two numbers of each
// query: its largest score, and one over the sum of its exponentials. From them the backward computes the
// probabilities again, tile by tile.
// A query that sees no key (all its scores are minus infinity) gets 0 and gives no gradients, as in ATen.
// Source: Dao 2023, "FlashAttention-2" (arXiv 2307.08691), for the backward.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <comp_libtorch/kernels/attention_tiles.hpp>

namespace comp::libtorch::detail {

#if COMP_LIBTORCH_ATTENTION
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 sees it within its own vector functions
#endif

/// What changes the scores of a head. Lanes that a query does not see are never read.
struct head_scores {
  const attention_sizes& of;
  const std::byte* bias = nullptr;
  bool wide_bias = false;  // FP32
  const bool* keep = nullptr;
  std::int64_t bias_step = 0, keep_step = 0;  // [bytes] from query to query

  head_scores(const attention_case& c, const attention_sizes& sizes, std::int64_t head) : of{sizes} {
    if (c.bias.defined()) {
      const auto bytes = static_cast<std::int64_t>(c.bias.element_size());
      wide_bias = c.bias.scalar_type() == at::kFloat;
      bias = static_cast<const std::byte*>(c.bias.const_data_ptr()) + offset_of(c.bias, head, 0) * bytes;
      bias_step = c.bias.stride(2) * bytes;
    }
    if (c.keep.defined()) {
      keep = c.keep.const_data_ptr<bool>() + offset_of(c.keep, head, 0);
      keep_step = c.keep.stride(2);
    }
  }
  COMP_LIBTORCH_AVX512 __m512 score(__m512 product, std::int64_t query, std::int64_t key, __mmask16 lanes) const {
    const __m512 scaled = _mm512_mul_ps(product, _mm512_set1_ps(of.scale));
    if (!bias) return scaled;
    const std::byte* row = bias + query * bias_step;
    return _mm512_add_ps(scaled,
                         wide_bias ? _mm512_maskz_loadu_ps(lanes, row + key * 4) : load_bf16(row + key * 2, lanes));
  }
  /// Returns x where dropout keeps it, else 0. What is kept grows by `of.kept`, later and in FP32.
  COMP_LIBTORCH_AVX512 __m512 dropped(__m512 x, std::int64_t query, std::int64_t key, __mmask16 lanes) const {
    if (!keep) return x;
    const __m128i mask = _mm_maskz_loadu_epi8(lanes, keep + query * keep_step + key);
    return _mm512_maskz_mov_ps(_mm_test_epi8_mask(mask, mask), x);
  }
};

/// The numbers of each query that the backward needs; both (B,H,Lq).
struct query_sums {
  float *largest, *inverse;
};

/// Calls f(memory, i) for all i below `count`, on all threads, each with a Memory of its own.
template <class Memory, class F>
void on_threads(const attention_sizes& of, std::int64_t count, const F& f) {
  scratch counted;
  (void)Memory{counted, of};
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    const at::DataPtr own = c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(counted.used()));
    scratch pieces{static_cast<std::byte*>(own.get())};
    Memory memory{pieces, of};
    const tile_registers none_before_and_after;
    for (std::int64_t i = begin; i < end; ++i) f(memory, i);
  });
}

/// Reads tile `j` of k or v; transposed to (wide/2,64), and two rows in one to (32,wide), where asked. `rows` is
/// memory for (64,wide).
inline void read_keys(const attention_sizes& of, const at::Tensor& from, std::int64_t head, std::int64_t j, bf16* rows,
                      std::uint32_t* transposed, std::uint32_t* pairs) {
  copy_rows(of, row_of(from, head, j * tile), from.stride(2), std::min(tile, of.keys - j * tile), rows);
  if (transposed) transpose_words(rows, tile, of.wide / 2, transposed + j * of.words(), tile);
  if (pairs) pair_rows(rows, of.wide, pairs + j * of.words());
}

struct forward_memory {
  std::uint32_t *k, *v;    // of the head, tile by tile: k is transposed, v has two rows in one
  float *scores, *y;       // of 64 queries: tile by tile (64,64); (64,wide)
  bf16 *shares, *rows;     // exponentials as the product with v reads them, as scores; (64,wide)
  std::int64_t head = -1;  // that k and v are of
  forward_memory(scratch& from, const attention_sizes& of)
      : k{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        v{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        scores{from.take<float>(tiles_in(of.keys) * tile * tile)},
        y{from.take<float>(tile * of.wide)},
        shares{from.take<bf16>(tiles_in(of.keys) * tile * tile)},
        rows{from.take<bf16>(tile * of.wide)} {}
};

/// Turns the scores of a block of queries into exponentials relative to each query's largest, zeros where it sees
/// nothing. The division by their sum comes with the result.
COMP_LIBTORCH_AVX512 inline void soften(const head_scores& in, const forward_memory& on, std::int64_t query,
                                        std::int64_t rows, std::int64_t columns, const query_sums& to) {
  const __m512 nothing = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto at = [r](std::int64_t key) { return key / tile * tile * tile + r * tile + key % tile; };
    const std::int64_t seen = in.of.seen_by(query + r);
    __m512 top = nothing;
    for (std::int64_t key = 0; key < seen; key += 16) {
      const __mmask16 lanes = first(seen - key);
      const __m512 x = in.score(_mm512_loadu_ps(on.scores + at(key)), query + r, key, lanes);
      top = _mm512_max_ps(top, _mm512_mask_mov_ps(nothing, lanes, x));
      _mm512_storeu_ps(on.scores + at(key), _mm512_mask_mov_ps(nothing, lanes, x));
    }
    const float most = _mm512_reduce_max_ps(top), largest = std::isinf(most) && most < 0 ? 0 : most;
    __m512 sum = _mm512_setzero_ps();
    std::int64_t key = 0;
    for (; key < seen; key += 16) {
      const __m512 share = exponential(_mm512_sub_ps(_mm512_loadu_ps(on.scores + at(key)), _mm512_set1_ps(largest)));
      sum = _mm512_add_ps(sum, share);
      store_bf16(on.shares + at(key), in.dropped(share, query + r, key, first(seen - key)));
    }
    for (; key < columns; key += 16) store_bf16(on.shares + at(key), _mm512_setzero_ps());
    const float total = _mm512_reduce_add_ps(sum);
    to.largest[r] = largest;
    to.inverse[r] = total == 0 ? 0 : 1 / total;
  }
}

/// y (B,H,Lq,D) becomes the result of `c`; `sums` are filled for the backward.
inline void attend_forward(const attention_case& c, const at::Tensor& y, const query_sums& sums) {
  const attention_sizes of{c};
  const std::int64_t blocks = tiles_in(of.queries);
  on_threads<forward_memory>(of, of.all_heads * blocks, [&](forward_memory& on, std::int64_t i) {
    const std::int64_t head = i / blocks, query = i % blocks * tile, rows = std::min(tile, of.queries - query);
    if (head != on.head) {
      for (std::int64_t j = 0; j < tiles_in(of.keys); ++j) {
        read_keys(of, c.k, head, j, on.rows, on.k, nullptr);
        read_keys(of, c.v, head, j, on.rows, nullptr, on.v);
      }
      on.head = head;
    }
    copy_rows(of, row_of(c.q, head, query), c.q.stride(2), rows, on.rows);
    const std::int64_t tiles = tiles_in(of.seen_by(query + rows - 1)), m = padded(rows);
    for (std::int64_t j = 0; j < tiles; ++j) {
      multiply(m, of.columns(j), of.wide, on.rows, of.wide, on.k + j * of.words(), tile, on.scores + j * tile * tile,
               tile, false);
    }
    const query_sums own{sums.largest + head * of.queries + query, sums.inverse + head * of.queries + query};
    soften({c, of, head}, on, query, rows, (tiles - 1) * tile + of.columns(tiles - 1), own);
    for (std::int64_t j = 0; j < tiles; ++j) {
      multiply(m, of.wide, of.columns(j), on.shares + j * tile * tile, tile, on.v + j * of.words(), of.wide, on.y,
               of.wide, j > 0);
    }
    store_rows(of, on.y, of.kept, own.inverse, rows, row_to_write(y, head, query), y.stride(2));
  });
}

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
COMP_LIBTORCH_AVX512 inline softened soften_backward(const head_scores& in, const backward_memory& on,
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

}  // namespace comp::libtorch::detail
