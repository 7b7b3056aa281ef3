// SPDX-License-Identifier: Apache-2.0
// Converts FP32 to and from BF16 and FP16: rounding to the nearest value, ties to even, with subnormals, infinities and
// NaN. A value too large for FP16 becomes infinity, as on a device that computes in FP16.
// F16C and AVX-512 convert if the CPU has them, else integer arithmetic does; both give the same bits.
#pragma once

#include <algorithm>
#include <comp/core/precision.hpp>
#include <comp_native/storage.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernel.hpp"

#if COMP_HOST_DISPATCH
#include <immintrin.h>
#endif

namespace comp::host {

using native::math::bf16;
using native::math::fp16;
using native::math::fp16_bits;
using native::math::fp16_value;
using native::math::load;
using native::math::store;

namespace detail {

inline void convert_scalar(const float* from, fp16* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i].bits = fp16_bits(from[i]);
}
inline void convert_scalar(const fp16* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = fp16_value(from[i].bits);
}
#if COMP_HOST_DISPATCH
__attribute__((target("avx512f"))) inline std::size_t convert_avx512(const float* from, fp16* to, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i half =
        _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), half);
  }
  return i;
}
__attribute__((target("avx512f"))) inline std::size_t convert_avx512(const fp16* from, float* to, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm512_storeu_ps(to + i,
                     _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  }
  return i;
}
__attribute__((target("avx,f16c"))) inline std::size_t convert_f16c(const float* from, fp16* to, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  return i;
}
__attribute__((target("avx,f16c"))) inline std::size_t convert_f16c(const fp16* from, float* to, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}
inline bool has_f16c() {
  static const bool there = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  }();
  return there;
}
#endif

template <class From, class To>
void convert_widest(const From* from, To* to, std::size_t n) {
  std::size_t done = 0;
#if COMP_HOST_DISPATCH
  if (widest_unit() == vector_unit::avx512) {
    done = convert_avx512(from, to, n);
  } else if (has_f16c()) {
    done = convert_f16c(from, to, n);
  }
#endif
  convert_scalar(from + done, to + done, n - done);
}

}  // namespace detail

/// Convert n values on this thread.
inline void convert(const float* from, fp16* to, std::size_t n) { detail::convert_widest(from, to, n); }
inline void convert(const fp16* from, float* to, std::size_t n) { detail::convert_widest(from, to, n); }
inline void convert(const float* from, float* to, std::size_t n) { std::memcpy(to, from, n * sizeof(float)); }
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#endif
template <class From, class To>
void convert(const From* from, To* to, std::size_t n) {
  run_widest(
      [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) store(to[i], load(from[i]));
      },
      0, n);
}

#ifdef __clang__
#pragma clang diagnostic pop
#endif

/// Calls f with a null pointer of the type that stores values of `p`.
template <class F>
decltype(auto) with_storage(precision p, F f) {
  return native::with_storage(
      p, [&]<class T>(std::type_identity<T>) -> decltype(auto) { return f(static_cast<T*>(nullptr)); });
}
/// The same for the types that loops compute on, FP32 and BF16.
template <class F>
decltype(auto) with_operand(precision p, F f) {
  if (native::storage_of(p) == native::storage::bf16) return f(static_cast<bf16*>(nullptr));
  return f(static_cast<float*>(nullptr));
}

/// Converts n values from precision `from_p` to `to_p`, on all threads.
inline void convert_all(const void* from, precision from_p, void* to, precision to_p, std::size_t n) {
  with_storage(from_p, [&](auto* f) {
    with_storage(to_p, [&](auto* t) {
      using From = std::remove_pointer_t<decltype(f)>;
      using To = std::remove_pointer_t<decltype(t)>;
      const auto* source = static_cast<const From*>(from);
      auto* target = static_cast<To*>(to);
      if constexpr (std::is_same_v<From, To>) {
        std::memcpy(target, source, n * sizeof(From));
      } else if constexpr (!std::is_same_v<From, float> && !std::is_same_v<To, float>) {  // FP16 and BF16: through FP32
        launch(n, [=](std::size_t begin, std::size_t end) {
          for (std::size_t i = begin; i < end; i += 256) {
            float piece[256];
            const std::size_t some = end - i < 256 ? end - i : 256;
            convert(source + i, piece, some);
            convert(piece, target + i, some);
          }
        });
      } else {
        launch(n, [=](std::size_t begin, std::size_t end) { convert(source + begin, target + begin, end - begin); });
      }
    });
  });
}

namespace detail {
/// Rounds n FP32 values in rows of `length` to BF16 and interleaves each two rows: the values at column j of rows 2 i
/// and 2 i + 1 go to places 2 length i + 2 j and the one behind it. oneDNN's products of BF16 read their weights so,
/// because the CPU's instructions multiply pairs.
COMP_HOST_INLINE void pair_rows(const float* from, std::uint32_t* to, std::size_t n, std::size_t length) {
  for (std::size_t at = 0; at < n; at += 2 * length) {
    const float *even = from + at, *odd = even + length;
    std::uint32_t* pair = to + at / 2;
#pragma omp simd
    for (std::size_t j = 0; j < length; ++j) {
      bf16 low, high;
      store(low, even[j]);
      store(high, odd[j]);
      pair[j] = std::uint32_t{low.bits} | std::uint32_t{high.bits} << 16;
    }
  }
}
/// Runs `made(from, to)`, which computes the values of a range, over n values in pieces, and interleaves each piece
/// while it is still in the cache.
void launch_paired(std::size_t n, const float* values, void* pairs, std::size_t length, const auto& compute) {
  const std::size_t piece = std::max<std::size_t>(2048 / (2 * length), 1) * 2 * length;
  auto* const to = static_cast<std::uint32_t*>(pairs);
  launch((n + piece - 1) / piece,
         [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
           for (std::size_t at = begin * piece; at < end * piece && at < n; at += piece) {
             const std::size_t some = n - at < piece ? n - at : piece;
             compute(at, at + some);
             pair_rows(values + at, to + at / 2, some, length);
           }
         },
         4, 1);
}
}  // namespace detail

/// Converts n FP32 values in rows of `length` to BF16 with each two rows interleaved, on all threads.
inline void convert_paired(const float* from, void* to, std::size_t n, std::size_t length) {
  detail::launch_paired(n, from, to, length, [](std::size_t, std::size_t) COMP_HOST_KERNEL {});
}

/// Rounds n FP32 values in place to values that `p` can hold.
inline void round_all(float* values, precision p, std::size_t n) {
  with_storage(p, [&](auto* s) {
    using Storage = std::remove_pointer_t<decltype(s)>;
    if constexpr (!std::is_same_v<Storage, float>) {
      launch(n, [=](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; i += 256) {
          Storage piece[256];
          const std::size_t some = end - i < 256 ? end - i : 256;
          convert(values + i, piece, some);
          convert(piece, values + i, some);
        }
      });
    }
  });
}

}  // namespace comp::host
