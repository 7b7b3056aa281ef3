// SPDX-License-Identifier: Apache-2.0
// Loops over BF16 numbers in vectors as wide as the CPU's. BF16 is the upper half of FP32, so the arithmetic is FP32's
// and only loads and stores differ.
// FP16 has no such loops, because it takes a conversion that not every CPU has.
#pragma once

#include <comp_libtorch/hook/bernoulli.hpp>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace comp::libtorch::detail {

/// Vectors of `lanes` numbers.
template <int lanes>
struct vectors {
  using floats [[gnu::vector_size(4 * lanes)]] = float;
  using words [[gnu::vector_size(4 * lanes)]] = std::uint32_t;
  using halves [[gnu::vector_size(2 * lanes)]] = std::uint16_t;
  using shorts [[gnu::vector_size(2 * lanes)]] = std::int16_t;
  using bytes [[gnu::vector_size(lanes)]] = std::uint8_t;
};

COMP_LIBTORCH_INLINE void load(const void* from, auto& to) { std::memcpy(&to, from, sizeof to); }
COMP_LIBTORCH_INLINE void store(const auto& from, void* to) { std::memcpy(to, &from, sizeof from); }

/// Writes the numbers that the BF16 numbers `from` are.
template <int lanes>
COMP_LIBTORCH_INLINE void widen(const typename vectors<lanes>::halves& from, typename vectors<lanes>::floats& to) {
  using words = typename vectors<lanes>::words;
  const words upper = __builtin_convertvector(from, words) << 16;
  std::memcpy(&to, &upper, sizeof to);
}
template <int lanes>
COMP_LIBTORCH_INLINE void load_bf16(const std::uint16_t* from, typename vectors<lanes>::floats& to) {
  typename vectors<lanes>::halves low;
  load(from, low);
  widen<lanes>(low, to);
}

/// Rounds to the nearest BF16 numbers, of two equally near ones to the even one.
template <int lanes>
COMP_LIBTORCH_INLINE void round_to_bf16(const typename vectors<lanes>::floats& from,
                                        typename vectors<lanes>::halves& to) {
  typename vectors<lanes>::words bits;
  std::memcpy(&bits, &from, sizeof bits);
  bits = from == from ? bits + (((bits >> 16) & 1U) + 0x7fffU) : bits | 0x400000U;  // NaN stays NaN
  to = __builtin_convertvector(bits >> 16, typename vectors<lanes>::halves);
}

/// Calls f(0), ..., f(count - 1) with constants, so that arrays that they index stay in registers.
template <int count, class F>
COMP_LIBTORCH_INLINE void unrolled(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, count>{});
}

#if COMP_LIBTORCH_X86
template <class Body>
__attribute__((target("avx2,fma"))) void run_avx2(const Body& body) {
  body(std::integral_constant<int, 8>{});
}
template <class Body>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) void run_avx512(const Body& body) {
  body(std::integral_constant<int, 16>{});
}
#endif

/// Calls body(lanes), compiled for this CPU's widest vectors. Requires: `body` and what it calls is always inlined.
void run_widest(const auto& body) {
#if COMP_LIBTORCH_X86
  if (has_avx512()) return run_avx512(body);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_avx2(body);
#endif
  body(std::integral_constant<int, 4>{});
}

}  // namespace comp::libtorch::detail
