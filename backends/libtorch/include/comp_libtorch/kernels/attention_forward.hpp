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

/// Reads tile `j` of k or v as the words of a right side (64,wide) and of its transpose, if `words` and `transposed`
/// are not null. `rows` is memory for (64,wide).
template <class Vectors, class T>
void read_keys(const attention_sizes<T>& of, const at::Tensor& from, std::int64_t head, std::int64_t j, T* rows,
               std::uint32_t* transposed, std::uint32_t* words) {
  copy_rows(of, row_of<T>(from, head, j * tile), from.stride(2), std::min(tile, of.keys - j * tile), rows);
  if (transposed) Vectors::transpose_words(rows, tile, of.wide / rows_in_word<T>, transposed + j * of.words(), tile);
  if (words) Vectors::to_words(rows, of.wide, words + j * of.words());
}

/// y (B,H,Lq,D) becomes the result of `c`; `unrounded`, if it is defined, the same in FP32; `sums` are filled for the
/// backward. Vectors: avx512, or in FP32 avx2.
template <class Vectors, class T>
void attend_forward(const attention_case& c, const at::Tensor& y, const at::Tensor& unrounded, const query_sums& sums) {
  const attention_sizes<T> of{c};
  const std::int64_t blocks = tiles_in(of.queries);
  on_threads<forward_memory<T>>(of, of.all_heads * blocks, [&](forward_memory<T>& on, std::int64_t i) {
    const std::int64_t head = i / blocks, query = i % blocks * tile, rows = std::min(tile, of.queries - query);
    if (head != on.head) {
      for (std::int64_t j = 0; j < tiles_in(of.keys); ++j) {
        read_keys<Vectors>(of, c.k, head, j, on.rows, on.k, nullptr);
        read_keys<Vectors>(of, c.v, head, j, on.rows, nullptr, on.v);
      }
      on.head = head;
    }
    copy_rows(of, row_of<T>(c.q, head, query), c.q.stride(2), rows, on.rows);
    const std::int64_t tiles = tiles_in(of.visible_to(query + rows - 1)), m = padded(rows);
    for (std::int64_t j = 0; j < tiles; ++j) {
      multiply(m, of.columns(j), of.wide, on.rows, of.wide, on.k + j * of.words(), tile, on.scores + j * tile * tile,
               tile, false);
    }
    const query_sums own{sums.largest + head * of.queries + query, sums.inverse + head * of.queries + query};
    Vectors::soften(head_scores<T>{c, of, head}, on, query, rows, (tiles - 1) * tile + of.columns(tiles - 1), own);
    for (std::int64_t j = 0; j < tiles; ++j) {
      multiply(m, of.wide, of.columns(j), on.shares + j * tile * tile, tile, on.v + j * of.words(), of.wide, on.y,
               of.wide, j > 0);
    }
    Vectors::store_rows(of, on.y, of.kept, own.inverse, rows, row_to_write<T>(y, head, query), y.stride(2),
                        unrounded.defined() ? row_to_write<float>(unrounded, head, query) : nullptr, of.width);
  });
}

#endif

}  // namespace comp::libtorch::detail::attention
