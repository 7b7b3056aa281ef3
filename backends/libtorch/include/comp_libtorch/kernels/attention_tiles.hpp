// SPDX-License-Identifier: Apache-2.0
// What attention computes with on x86-64 with AVX-512, in BF16 and in FP32 (attention.hpp says who is served). It goes
// in tiles of 64 queries by 64 keys. A tile's scores are made, softened and used while they are in the core's cache, so
// that the score matrix is never in memory.
// The products are at::native::cpublas::brgemm, LibTorch's way to oneDNN's kernels for one thread (AMX where the CPU
// has it). They read BF16 or FP32 and write FP32. The right side consists of words of 32 bits. A word of FP32 is a
// number; in BF16 word (i, j) holds the elements (2i, j) and (2i+1, j). Seen as words, a transposed matrix in this
// layout is just the transpose of the words of its rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <comp_libtorch/support/tensors.hpp>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && defined(__x86_64__) && defined(CPUBLAS_BRGEMM_BF16BF16F32) && defined(CPUBLAS_BRGEMM_F32F32F32)
#define COMP_LIBTORCH_ATTENTION 1
#include <immintrin.h>
#define COMP_LIBTORCH_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define COMP_LIBTORCH_AVX512_INLINE COMP_LIBTORCH_AVX512 __attribute__((always_inline)) inline
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
};

#if COMP_LIBTORCH_ATTENTION
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 sees it within its own vector functions
#endif

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
  std::int64_t seen_by(std::int64_t query) const { return causal ? std::min(query + 1, keys) : keys; }
};

/// Returns: where row `row` of head `head` (counted through the batch) begins in t (B,H,rows,columns).
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

/// The first `count` of 16 lanes.
COMP_LIBTORCH_AVX512_INLINE __mmask16 first(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}
COMP_LIBTORCH_AVX512_INLINE __m512 load(const bf16* from, __mmask16 lanes) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from)), 16));
}
COMP_LIBTORCH_AVX512_INLINE __m512 load(const float* from, __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, from);
}
COMP_LIBTORCH_AVX512_INLINE __m256i to_bf16(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
COMP_LIBTORCH_AVX512_INLINE void store(bf16* to, __m512 x, __mmask16 lanes = 0xffff) {
  _mm256_mask_storeu_epi16(to, lanes, to_bf16(x));
}
COMP_LIBTORCH_AVX512_INLINE void store(float* to, __m512 x, __mmask16 lanes = 0xffff) {
  _mm512_mask_storeu_ps(to, lanes, x);
}
/// Two rows in one, `low` the even one.
COMP_LIBTORCH_AVX512_INLINE __m512i paired(__m256i low, __m256i high) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}
/// Writes 16 numbers of each of the rows r and r + 1 of a right side (64,64), r even.
template <class T>
COMP_LIBTORCH_AVX512_INLINE void store_words(std::uint32_t* to, std::int64_t r, std::int64_t column, __m512 even,
                                             __m512 odd) {
  if constexpr (rows_in_word<T> == 2) {
    _mm512_storeu_si512(to + r / 2 * tile + column, paired(to_bf16(even), to_bf16(odd)));
  } else {
    _mm512_storeu_ps(to + r * tile + column, even);
    _mm512_storeu_ps(to + (r + 1) * tile + column, odd);
  }
}
/// e^x as 2^n times the Taylor series of 2^f for |f| <= 1/2, off by 2e-7 of it. NaN stays NaN.
COMP_LIBTORCH_AVX512_INLINE __m512 exponential(__m512 x) {
  constexpr float ln2 = 0.693147181F;
  constexpr float series[] = {
      ln2 * ln2 * ln2 * ln2 * ln2 / 120, ln2 * ln2 * ln2 * ln2 / 24, ln2 * ln2 * ln2 / 6, ln2 * ln2 / 2, ln2, 1};
  const __m512 power = _mm512_max_ps(_mm512_set1_ps(-1000), _mm512_mul_ps(x, _mm512_set1_ps(1 / ln2)));
  const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(power, whole);
  __m512 sum = _mm512_set1_ps(ln2 * ln2 * ln2 * ln2 * ln2 * ln2 / 720);
#pragma GCC unroll 6
  for (const float term : series) sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(term));
  return _mm512_scalef_ps(sum, whole);
}

/// Transposes words; `rows` and `columns` are multiples of 16.
COMP_LIBTORCH_AVX512 inline void transpose_words(const void* from, std::int64_t rows, std::int64_t columns, void* to,
                                                 std::int64_t to_columns) {
  for (std::int64_t i = 0; i < rows; i += 16) {
    for (std::int64_t j = 0; j < columns; j += 16) {
      const auto* read = static_cast<const std::uint32_t*>(from) + i * columns + j;
      auto* write = static_cast<std::uint32_t*>(to) + j * to_columns + i;
      __m512i a[16], b[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) a[r] = _mm512_loadu_si512(read + r * columns);
#pragma GCC unroll 8
      for (int r = 0; r < 16; r += 2) {
        b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
        b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < 16; r += 4) {  // a[r + c] gets column c of rows r to r+3, in each quarter of the vector
        a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
        a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
        a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
        a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
      }
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {  // quarter q of the four vectors is column 4q+c
        const __m512i even = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88),
                      odd = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
        const __m512i even2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88),
                      odd2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
        _mm512_storeu_si512(write + c * to_columns, _mm512_shuffle_i32x4(even, even2, 0x88));
        _mm512_storeu_si512(write + (4 + c) * to_columns, _mm512_shuffle_i32x4(odd, odd2, 0x88));
        _mm512_storeu_si512(write + (8 + c) * to_columns, _mm512_shuffle_i32x4(even, even2, 0xdd));
        _mm512_storeu_si512(write + (12 + c) * to_columns, _mm512_shuffle_i32x4(odd, odd2, 0xdd));
      }
    }
  }
}
/// from (64,columns) -> the words of a right side, in BF16 (32,columns).
inline void to_words(const float* from, std::int64_t columns, std::uint32_t* to) {
  std::memcpy(to, from, static_cast<std::size_t>(tile * columns) * sizeof(float));
}
COMP_LIBTORCH_AVX512 inline void to_words(const bf16* from, std::int64_t columns, std::uint32_t* to) {
  for (std::int64_t r = 0; r < tile; r += 2) {
    for (std::int64_t c = 0; c < columns; c += 16) {
      const auto* row = from + r * columns + c;
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + columns));
      _mm512_storeu_si512(to + r / 2 * columns + c, paired(low, high));
    }
  }
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
/// Rounds rows of (rows,wide), multiplied by `all` and by factors of their own if there are any.
template <class T>
COMP_LIBTORCH_AVX512 void store_rows(const attention_sizes<T>& of, const float* from, float all, const float* factors,
                                     std::int64_t rows, T* to, std::int64_t step) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const __m512 factor = _mm512_set1_ps(factors ? all * factors[r] : all);
    for (std::int64_t c = 0; c < of.width; c += 16) {
      const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(from + r * of.wide + c), factor);
      store(to + r * step + c, x, first(of.width - c));
    }
  }
}

#pragma GCC diagnostic pop
#endif

}  // namespace comp::libtorch::detail::attention
