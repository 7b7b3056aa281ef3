// SPDX-License-Identifier: Apache-2.0
// Attention's vectors in AVX2, in FP32 alone.
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
#define COMP_LIBTORCH_VECTORS __attribute__((target("avx2,fma")))
#define COMP_LIBTORCH_VECTORS_INLINE COMP_LIBTORCH_VECTORS __attribute__((always_inline)) inline static

namespace comp::libtorch::detail::attention {

#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 sees it within its own vector functions
#endif

struct avx2 {
  using floats = __m256;
  static constexpr std::int64_t lanes = 8;

  COMP_LIBTORCH_VECTORS_INLINE __m256i first(std::int64_t count) {
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(std::min(count, lanes))), numbers);
  }
  COMP_LIBTORCH_VECTORS_INLINE floats first(std::int64_t count, floats x, floats others) {
    return count >= lanes ? x : _mm256_blendv_ps(others, x, _mm256_castsi256_ps(first(count)));
  }
  COMP_LIBTORCH_VECTORS_INLINE floats each(float x) { return _mm256_set1_ps(x); }
  COMP_LIBTORCH_VECTORS_INLINE floats larger(floats a, floats b) { return _mm256_max_ps(a, b); }
  COMP_LIBTORCH_VECTORS_INLINE floats times_plus(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
  COMP_LIBTORCH_VECTORS_INLINE floats rounded(floats x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  /// Returns: x 2^n, for whole n. Below `least_power` it is 0.
  COMP_LIBTORCH_VECTORS_INLINE floats scaled(floats x, floats n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static constexpr float least_power = -127;
  COMP_LIBTORCH_VECTORS_INLINE float largest_of(floats x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  COMP_LIBTORCH_VECTORS_INLINE float sum_of(floats x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  COMP_LIBTORCH_VECTORS_INLINE floats load(const float* from, std::int64_t count = lanes) {
    return count >= lanes ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, first(count));
  }
  COMP_LIBTORCH_VECTORS_INLINE floats load(const bf16* from, std::int64_t count) {
    float numbers[lanes] = {};
    for (std::int64_t i = 0; i < std::min(count, lanes); ++i) numbers[i] = from[i];
    return load(numbers);
  }
  COMP_LIBTORCH_VECTORS_INLINE void store(float* to, floats x, std::int64_t count = lanes) {
    count >= lanes ? _mm256_storeu_ps(to, x) : _mm256_maskstore_ps(to, first(count), x);
  }
  /// Returns: x in the lanes whose `chosen` is true, 0 in the others.
  COMP_LIBTORCH_VECTORS_INLINE floats where(const bool* chosen, std::int64_t count, floats x) {
    std::uint64_t bytes = 0;
    count >= lanes ? std::memcpy(&bytes, chosen, sizeof bytes)
                   : std::memcpy(&bytes, chosen, static_cast<std::size_t>(count));
    const __m256i words = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(words, _mm256_setzero_si256())));
  }
  /// Writes 8 numbers of each of the rows r and r + 1 of a right side (64,64).
  template <class T>
  COMP_LIBTORCH_VECTORS_INLINE void store_words(std::uint32_t* to, std::int64_t r, std::int64_t column, floats even,
                                                floats odd) {
    store(reinterpret_cast<float*>(to) + r * tile + column, even);
    store(reinterpret_cast<float*>(to) + (r + 1) * tile + column, odd);
  }
  /// Transposes words; `rows` and `columns` are multiples of 8.
  COMP_LIBTORCH_VECTORS static void transpose_words(const void* from, std::int64_t rows, std::int64_t columns, void* to,
                                                    std::int64_t to_columns) {
    for (std::int64_t i = 0; i < rows; i += 8) {
      for (std::int64_t j = 0; j < columns; j += 8) {
        const auto* read = static_cast<const float*>(from) + i * columns + j;
        auto* write = static_cast<float*>(to) + j * to_columns + i;
        __m256 a[8], b[8];
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) a[r] = _mm256_loadu_ps(read + r * columns);
#pragma GCC unroll 4
        for (int r = 0; r < 8; r += 2) {
          b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
          b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
        }
#pragma GCC unroll 2
        for (int r = 0; r < 8; r += 4) {  // a[r + c] gets columns c and 4 + c of rows r to r+3
          a[r] = _mm256_shuffle_ps(b[r], b[r + 2], 0x44);
          a[r + 1] = _mm256_shuffle_ps(b[r], b[r + 2], 0xee);
          a[r + 2] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0x44);
          a[r + 3] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0xee);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          _mm256_storeu_ps(write + c * to_columns, _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
          _mm256_storeu_ps(write + (4 + c) * to_columns, _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
        }
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
