// SPDX-License-Identifier: Apache-2.0
// Attention's vectors in AVX-512, in BF16 and in FP32.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp_libtorch/kernels/attention_tiles.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if COMP_LIBTORCH_ATTENTION
#include <immintrin.h>
#define COMP_LIBTORCH_VECTORS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define COMP_LIBTORCH_VECTORS_INLINE COMP_LIBTORCH_VECTORS __attribute__((always_inline)) inline static

namespace comp::libtorch::detail::attention {

#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 sees it within its own vector functions
#endif

struct avx512 {
  using floats = __m512;
  static constexpr std::int64_t lanes = 16;

  COMP_LIBTORCH_VECTORS_INLINE __mmask16 first(std::int64_t count) {
    return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
  }
  COMP_LIBTORCH_VECTORS_INLINE floats first(std::int64_t count, floats x, floats others) {
    return _mm512_mask_mov_ps(others, first(count), x);
  }
  COMP_LIBTORCH_VECTORS_INLINE floats each(float x) { return _mm512_set1_ps(x); }
  COMP_LIBTORCH_VECTORS_INLINE floats larger(floats a, floats b) { return _mm512_max_ps(a, b); }
  COMP_LIBTORCH_VECTORS_INLINE floats times_plus(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
  COMP_LIBTORCH_VECTORS_INLINE floats rounded(floats x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  /// Returns: x 2^n, for whole n.
  COMP_LIBTORCH_VECTORS_INLINE floats scaled(floats x, floats n) { return _mm512_scalef_ps(x, n); }
  static constexpr float least_power = -1000;  // so that e^-infinity is no NaN
  COMP_LIBTORCH_VECTORS_INLINE float largest_of(floats x) { return _mm512_reduce_max_ps(x); }
  COMP_LIBTORCH_VECTORS_INLINE float sum_of(floats x) { return _mm512_reduce_add_ps(x); }
  COMP_LIBTORCH_VECTORS_INLINE floats load(const bf16* from, std::int64_t count) {
    const __m256i halves = _mm256_maskz_loadu_epi16(first(count), from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  COMP_LIBTORCH_VECTORS_INLINE floats load(const float* from, std::int64_t count = lanes) {
    return _mm512_maskz_loadu_ps(first(count), from);
  }
  COMP_LIBTORCH_VECTORS_INLINE __m256i to_bf16(floats x) { return (__m256i)_mm512_cvtneps_pbh(x); }
  COMP_LIBTORCH_VECTORS_INLINE void store(bf16* to, floats x, std::int64_t count = lanes) {
    _mm256_mask_storeu_epi16(to, first(count), to_bf16(x));
  }
  COMP_LIBTORCH_VECTORS_INLINE void store(float* to, floats x, std::int64_t count = lanes) {
    _mm512_mask_storeu_ps(to, first(count), x);
  }
  /// Returns: x in the lanes whose `chosen` is true, 0 in the others.
  COMP_LIBTORCH_VECTORS_INLINE floats where(const bool* chosen, std::int64_t count, floats x) {
    const __m128i bytes = _mm_maskz_loadu_epi8(first(count), chosen);
    return _mm512_maskz_mov_ps(_mm_test_epi8_mask(bytes, bytes), x);
  }
  /// Two rows in one, `low` the even one.
  COMP_LIBTORCH_VECTORS_INLINE __m512i paired(__m256i low, __m256i high) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  }
  /// Writes 16 numbers of each of the rows r and r + 1 of a right side (64,64), r even.
  template <class T>
  COMP_LIBTORCH_VECTORS_INLINE void store_words(std::uint32_t* to, std::int64_t r, std::int64_t column, floats even,
                                                floats odd) {
    if constexpr (rows_in_word<T> == 2) {
      _mm512_storeu_si512(to + r / 2 * tile + column, paired(to_bf16(even), to_bf16(odd)));
    } else {
      _mm512_storeu_ps(to + r * tile + column, even);
      _mm512_storeu_ps(to + (r + 1) * tile + column, odd);
    }
  }
  /// Transposes words; `rows` and `columns` are multiples of 16.
  COMP_LIBTORCH_VECTORS static void transpose_words(const void* from, std::int64_t rows, std::int64_t columns, void* to,
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
  /// from (64,columns) -> the words of a right side (32,columns).
  COMP_LIBTORCH_VECTORS static void to_words(const bf16* from, std::int64_t columns, std::uint32_t* to) {
    for (std::int64_t r = 0; r < tile; r += 2) {
      for (std::int64_t c = 0; c < columns; c += 16) {
        const auto* row = from + r * columns + c;
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + columns));
        _mm512_storeu_si512(to + r / 2 * columns + c, paired(low, high));
      }
    }
  }

#include <comp_libtorch/kernels/attention_loops.inc>
};

#pragma GCC diagnostic pop

}  // namespace comp::libtorch::detail::attention

#undef COMP_LIBTORCH_VECTORS
#undef COMP_LIBTORCH_VECTORS_INLINE
#endif
