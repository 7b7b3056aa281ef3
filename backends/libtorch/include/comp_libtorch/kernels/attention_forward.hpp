// SPDX-License-Identifier: Apache-2.0
// Attention's forward over all heads, in the tiles of attention_tiles.hpp, on LibTorch's threads. It makes all scores
// of 64 queries, softens them and multiplies them with v. Of each query it keeps two numbers for the backward: its
// largest score, and one over the sum of its exponentials. A query that sees no key (all its scores are minus infinity)
// gets 0 and gives no gradients, as in ATen.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <comp_libtorch/kernels/attention_tiles.hpp>
#include <comp_libtorch/support/parallel.hpp>

namespace comp::libtorch::detail::attention {

#if COMP_LIBTORCH_ATTENTION
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 sees it within its own vector functions
#endif

/// What changes the scores of a head. Lanes that a query does not see are never read.
template <class T>
struct head_scores {
  const attention_sizes<T>& of;
  const std::byte* bias = nullptr;
  bool wide_bias = false;  // FP32
  const bool* keep = nullptr;
  std::int64_t bias_step = 0, keep_step = 0;  // [bytes] from query to query

  head_scores(const attention_case& c, const attention_sizes<T>& sizes, std::int64_t head) : of{sizes} {
    if (c.bias.defined()) {
      const auto bytes = static_cast<std::int64_t>(c.bias.element_size());
      wide_bias = c.bias.scalar_type() == at::kFloat;
      bias = static_cast<const std::byte*>(c.bias.const_data_ptr()) + offset_of(c.bias, head, 0) * bytes;
      bias_step = c.bias.stride(2) * bytes;
    }
    if (c.keep.defined()) {
      keep = values_of<bool>(c.keep) + offset_of(c.keep, head, 0);
      keep_step = c.keep.stride(2);
    }
  }
  COMP_LIBTORCH_AVX512_INLINE __m512 score(__m512 product, std::int64_t query, std::int64_t key,
                                           __mmask16 lanes) const {
    const __m512 scaled = _mm512_mul_ps(product, _mm512_set1_ps(of.scale));
    if (!bias) return scaled;
    const std::byte* row = bias + query * bias_step;
    return _mm512_add_ps(scaled, wide_bias ? load(reinterpret_cast<const float*>(row) + key, lanes)
                                           : load(reinterpret_cast<const bf16*>(row) + key, lanes));
  }
  /// Returns x where dropout keeps it, else 0. What is kept grows by `of.kept`, later and in FP32.
  COMP_LIBTORCH_AVX512_INLINE __m512 dropped(__m512 x, std::int64_t query, std::int64_t key, __mmask16 lanes) const {
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
template <class Memory, class T, class F>
void on_threads(const attention_sizes<T>& of, std::int64_t count, const F& f) {
  scratch counted;
  (void)Memory{counted, of};
  in_parallel(count, 1, [&](std::int64_t begin, std::int64_t end) {
    const at::DataPtr own = c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(counted.used()));
    scratch pieces{static_cast<std::byte*>(own.get())};
    Memory memory{pieces, of};
    const tile_registers none_before_and_after;
    for (std::int64_t i = begin; i < end; ++i) f(memory, i);
  });
}

/// Reads tile `j` of k or v, as the words of a right side (64,wide) and of its transpose, where asked. `rows` is memory
/// for (64,wide).
template <class T>
void read_keys(const attention_sizes<T>& of, const at::Tensor& from, std::int64_t head, std::int64_t j, T* rows,
               std::uint32_t* transposed, std::uint32_t* words) {
  copy_rows(of, row_of<T>(from, head, j * tile), from.stride(2), std::min(tile, of.keys - j * tile), rows);
  if (transposed) transpose_words(rows, tile, of.wide / rows_in_word<T>, transposed + j * of.words(), tile);
  if (words) to_words(rows, of.wide, words + j * of.words());
}

template <class T>
struct forward_memory {
  std::uint32_t *k, *v;    // of the head, tile by tile, as right sides; k is transposed
  float *scores, *y;       // of 64 queries: tile by tile (64,64); (64,wide)
  T *shares, *rows;        // exponentials as the product with v reads them, as scores; (64,wide)
  std::int64_t head = -1;  // that k and v are of
  forward_memory(scratch& from, const attention_sizes<T>& of)
      : k{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        v{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        scores{from.take<float>(tiles_in(of.keys) * tile * tile)},
        y{from.take<float>(tile * of.wide)},
        shares{from.take<T>(tiles_in(of.keys) * tile * tile)},
        rows{from.take<T>(tile * of.wide)} {}
};

/// Turns the scores of a block of queries into exponentials relative to each query's largest, zeros where it sees
/// nothing. The division by their sum comes with the result.
template <class T>
COMP_LIBTORCH_AVX512 void soften(const head_scores<T>& in, const forward_memory<T>& on, std::int64_t query,
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
      store(on.shares + at(key), in.dropped(share, query + r, key, first(seen - key)));
    }
    for (; key < columns; key += 16) store(on.shares + at(key), _mm512_setzero_ps());
    const float total = _mm512_reduce_add_ps(sum);
    to.largest[r] = largest;
    to.inverse[r] = total == 0 ? 0 : 1 / total;
  }
}

/// y (B,H,Lq,D) becomes the result of `c`; `sums` are filled for the backward.
template <class T>
void attend_forward(const attention_case& c, const at::Tensor& y, const query_sums& sums) {
  const attention_sizes<T> of{c};
  const std::int64_t blocks = tiles_in(of.queries);
  on_threads<forward_memory<T>>(of, of.all_heads * blocks, [&](forward_memory<T>& on, std::int64_t i) {
    const std::int64_t head = i / blocks, query = i % blocks * tile, rows = std::min(tile, of.queries - query);
    if (head != on.head) {
      for (std::int64_t j = 0; j < tiles_in(of.keys); ++j) {
        read_keys(of, c.k, head, j, on.rows, on.k, nullptr);
        read_keys(of, c.v, head, j, on.rows, nullptr, on.v);
      }
      on.head = head;
    }
    copy_rows(of, row_of<T>(c.q, head, query), c.q.stride(2), rows, on.rows);
    const std::int64_t tiles = tiles_in(of.seen_by(query + rows - 1)), m = padded(rows);
    for (std::int64_t j = 0; j < tiles; ++j) {
      multiply(m, of.columns(j), of.wide, on.rows, of.wide, on.k + j * of.words(), tile, on.scores + j * tile * tile,
               tile, false);
    }
    const query_sums own{sums.largest + head * of.queries + query, sums.inverse + head * of.queries + query};
    soften(head_scores<T>{c, of, head}, on, query, rows, (tiles - 1) * tile + of.columns(tiles - 1), own);
    for (std::int64_t j = 0; j < tiles; ++j) {
      multiply(m, of.wide, of.columns(j), on.shares + j * tile * tile, tile, on.v + j * of.words(), of.wide, on.y,
               of.wide, j > 0);
    }
    store_rows(of, on.y, of.kept, own.inverse, rows, row_to_write<T>(y, head, query), y.stride(2));
  });
}

#pragma GCC diagnostic pop
#endif

}  // namespace comp::libtorch::detail::attention
