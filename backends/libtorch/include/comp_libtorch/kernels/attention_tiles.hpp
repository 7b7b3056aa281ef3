// SPDX-License-Identifier: Apache-2.0
// The tiles of attention on x86-64, in BF16 and in FP32 (attention.hpp says who is served). It goes in tiles of 64
// queries by 64 keys. A tile's scores are made, softened and used while they are in the core's cache, so that the score
// matrix is never in memory. What is done between two products is in attention_loops.inc.
// The products are at::native::cpublas::brgemm, LibTorch's way to oneDNN's kernels for one thread (AMX if the CPU has
// it). They read BF16 or FP32 and write FP32. The right side consists of words of 32 bits. A word of FP32 is a number;
// in BF16 word (i, j) holds the elements (2i, j) and (2i+1, j). Seen as words, a transposed matrix in this layout is
// just the transpose of the words of its rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && defined(__x86_64__) && defined(CPUBLAS_BRGEMM_BF16BF16F32) && defined(CPUBLAS_BRGEMM_F32F32F32)
#define COMP_LIBTORCH_ATTENTION 1
#else
#define COMP_LIBTORCH_ATTENTION 0
#endif

namespace comp::libtorch::detail::attention {

/// An attention on q (B,H,Lq,D), k and v (B,H,Lk,D); what is (B,H,L,D) has no gaps between the D elements of a row.
struct attention_case {
  at::Tensor q, k, v;
  at::Tensor bias;  // added to the scores: (B,H,Lq,Lk) in FP32 or BF16, or undefined. Rows have no gaps
  at::Tensor keep;  // dropout's mask, (B,H,Lq,Lk) of bool, or undefined
  double dropout = 0;
  bool causal = false;  // query i sees keys 0 to i
  double scale = 1;
  bool narrow = false;  // computed in AVX2
};

#if COMP_LIBTORCH_ATTENTION
using bf16 = at::BFloat16;
/// How many rows of the right side of a product stand in one row of its words.
template <class T>
constexpr std::int64_t rows_in_word = sizeof(std::uint32_t) / sizeof(T);
constexpr std::int64_t tile = 64;  // queries or keys; a row of it in BF16 is two cache lines
inline std::int64_t padded(std::int64_t n) { return (n + 31) / 32 * 32; }  // a step of AMX in BF16
inline std::int64_t tiles_in(std::int64_t n) { return (n + tile - 1) / tile; }

/// Sizes of a case in format T, and its numbers as the kernels read them.
template <class T>
struct attention_sizes {
  std::int64_t all_heads, queries, keys, width, wide;  // heads of all the batch; `wide` is `width`, padded
  float scale, kept;                                   // `kept` multiplies what dropout keeps
  bool causal;
  explicit attention_sizes(const attention_case& of)
      : all_heads{of.q.size(0) * of.q.size(1)},
        queries{of.q.size(2)},
        keys{of.k.size(2)},
        width{of.q.size(3)},
        wide{padded(width)},
        scale{static_cast<float>(of.scale)},
        kept{static_cast<float>(1 / (1 - of.dropout))},
        causal{of.causal} {}
  std::int64_t words() const { return tile * wide / rows_in_word<T>; }  // of a tile of k or v
  std::int64_t columns(std::int64_t j) const { return padded(std::min(tile, keys - j * tile)); }
  std::int64_t visible_to(std::int64_t query) const { return causal ? std::min(query + 1, keys) : keys; }
};

/// Returns: the offset of row `row` of head `head` (counted through the batch) in t (B,H,rows,columns).
inline std::int64_t offset_of(const at::Tensor& t, std::int64_t head, std::int64_t row) {
  return head / t.size(1) * t.stride(0) + head % t.size(1) * t.stride(1) + row * t.stride(2);
}
template <class T>
const T* row_of(const at::Tensor& t, std::int64_t head, std::int64_t row) {
  return values_of<T>(t) + offset_of(t, head, row);
}
template <class T>
T* row_to_write(const at::Tensor& t, std::int64_t head, std::int64_t row) {
  return t.mutable_data_ptr<T>() + offset_of(t, head, row);
}

/// A thread's memory, handed out in pieces at the begin of a cache line. Without memory it only counts.
class scratch {
 public:
  explicit scratch(std::byte* from = nullptr) : from_{from} {}
  template <class T>
  T* take(std::int64_t count) {
    T* const piece = from_ ? reinterpret_cast<T*>(from_ + used_) : nullptr;
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* from_;
  std::int64_t used_ = 0;
};

/// oneDNN's kernels set up the CPU's tile registers, and LibTorch remembers for which kernel. Other products that ran
/// on this thread in between have changed them, so this begins and ends with none.
struct tile_registers {
  tile_registers() { at::native::cpublas::brgemm_release(); }
  tile_registers(const tile_registers&) = delete;
  tile_registers& operator=(const tile_registers&) = delete;
  ~tile_registers() { at::native::cpublas::brgemm_release(); }
};

/// to (m,n) = a (m,k) b (k,n), or is added to.
template <class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const std::uint32_t* b,
              std::int64_t ldb, float* to, std::int64_t ldc, bool added) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, added, a, reinterpret_cast<const T*>(b), to);
}

/// Copies up to 64 rows, zeros after each and after the last: to is (64,wide).
template <class T>
void copy_rows(const attention_sizes<T>& of, const T* from, std::int64_t step, std::int64_t rows, T* to) {
  for (std::int64_t r = 0; r < tile; ++r) {
    const std::int64_t filled = r < rows ? of.width : 0;
    if (filled > 0) std::memcpy(to + r * of.wide, from + r * step, static_cast<std::size_t>(filled) * sizeof(T));
    std::memset(static_cast<void*>(to + r * of.wide + filled), 0,
                static_cast<std::size_t>(of.wide - filled) * sizeof(T));
  }
}
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
};

/// The numbers of each query that the backward needs; both (B,H,Lq).
struct query_sums {
  float *largest, *inverse;
};

/// Returns: in FP32 `numbers` themselves, as the softmax works in place; in BF16 memory for `count` rounded ones.
template <class T>
T* in_place(float* numbers, scratch& from, std::int64_t count) {
  return rows_in_word<T> == 1 ? reinterpret_cast<T*>(numbers) : from.take<T>(count);
}

/// What the forward of a head computes in.
template <class T>
struct forward_memory {
  std::uint32_t *k, *v;    // of the head, tile by tile, as right sides; k is transposed
  float *scores, *y;       // of 64 queries: tile by tile (64,64); (64,wide)
  T *shares, *rows;        // exponentials as the product with v reads them, in FP32 the scores; (64,wide)
  std::int64_t head = -1;  // that k and v are of
  forward_memory(scratch& from, const attention_sizes<T>& of)
      : k{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        v{from.take<std::uint32_t>(tiles_in(of.keys) * of.words())},
        scores{from.take<float>(tiles_in(of.keys) * tile * tile)},
        y{from.take<float>(tile * of.wide)},
        shares{in_place<T>(scores, from, tiles_in(of.keys) * tile * tile)},
        rows{from.take<T>(tile * of.wide)} {}
};

/// What the backward of a head computes in.
template <class T>
struct backward_memory {
  std::uint32_t *k, *v, *k_rows;             // of the head, tile by tile, as right sides; k and v are transposed
  float *dk, *dv;                            // of the head, tile by tile, transposed: (wide,64)
  T *q, *dy, *q_transposed, *dy_transposed;  // of 64 queries: (64,wide) and (wide,64)
  float *scores, *dshares, *dq, *dots;       // of a tile (64,64); of 64 queries: (64,wide), and the products dy y
  std::uint32_t *shares, *dscores, *words;   // as right sides: of a tile (64,64); of 64 queries (64,wide)
  T* dscore_rows;                            // (64,64)
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
        shares{reinterpret_cast<std::uint32_t*>(in_place<T>(scores, from, tile * tile))},
        dscores{reinterpret_cast<std::uint32_t*>(in_place<T>(dshares, from, tile * tile))},
        words{from.take<std::uint32_t>(of.words())},
        dscore_rows{in_place<T>(dshares, from, tile * tile)} {}
};

#endif

}  // namespace comp::libtorch::detail::attention
