// SPDX-License-Identifier: Apache-2.0
// Dropout whose mask is a function of key and element, not of threads, layout or device: Philox 4x32-10.
// Nothing is stored between forward and backward: the mask is made again.
// Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <array>
#include <cmath>
#include <comp_native/device.hpp>
#include <cstdint>

#include "context.hpp"
#include "convert.hpp"
#include "transfer.hpp"

namespace comp::host {

using native::dropout_key;

/// The words of `Lanes` counters side by side: word[j][lane] is word j of a counter. On entry the counters, then the
/// words.
template <std::size_t Lanes>
COMP_HOST_INLINE void philox(std::uint32_t (&word)[4][Lanes], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (std::size_t i = 0; i < Lanes; ++i) {
      const std::uint64_t a = std::uint64_t{word[0][i]} * 0xD2511F53U, b = std::uint64_t{word[2][i]} * 0xCD9E8D57U;
      const std::uint32_t first = static_cast<std::uint32_t>(b >> 32) ^ word[1][i] ^ key0;
      const std::uint32_t third = static_cast<std::uint32_t>(a >> 32) ^ word[3][i] ^ key1;
      word[0][i] = first;
      word[1][i] = static_cast<std::uint32_t>(b);
      word[2][i] = third;
      word[3][i] = static_cast<std::uint32_t>(a);
    }
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

namespace detail {

/// What makes a mask: an element is kept where its word is at least `least`, and then scaled.
struct mask {
  std::uint64_t least;
  float scale;
  std::uint32_t draw[2], key[2];
  mask(double p, const dropout_key& k)
      : least{static_cast<std::uint64_t>(std::ceil(p * 0x1p32))},
        scale{p < 1 ? static_cast<float>(1 / (1 - p)) : 0.0F},
        draw{static_cast<std::uint32_t>(k.draw), static_cast<std::uint32_t>(k.draw >> 32)},
        key{static_cast<std::uint32_t>(k.seed), static_cast<std::uint32_t>(k.seed >> 32)} {}

  static constexpr std::size_t lanes = 16, span = 4 * lanes;  // elements of one call
  /// The factors of the elements from 64 * at on.
  COMP_HOST_INLINE void factors(std::size_t at, float (&factor)[span]) const {
    std::uint32_t word[4][lanes];
    for (std::size_t i = 0; i < lanes; ++i) {
      const std::uint64_t group = std::uint64_t{at} * lanes + i;
      word[0][i] = static_cast<std::uint32_t>(group);
      word[1][i] = static_cast<std::uint32_t>(group >> 32);
      word[2][i] = draw[0];
      word[3][i] = draw[1];
    }
    philox(word, key[0], key[1]);
    for (std::size_t j = 0; j < 4; ++j) {
      for (std::size_t i = 0; i < lanes; ++i) factor[4 * i + j] = word[j][i] >= least ? scale : 0.0F;
    }
  }
};

/// y = x where kept, scaled; 0 elsewhere, whatever x is.
template <class T>
void masked(context& c, const T* from, T* to, std::size_t n, const mask& m) {
  c.run_kernel([&] {
    launch((n + mask::span - 1) / mask::span,
           [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
             for (std::size_t at = begin; at < end; ++at) {
               float factor[mask::span];
               m.factors(at, factor);
               const std::size_t first = at * mask::span, some = n - first < mask::span ? n - first : mask::span;
               const T* x = from + first;
               T* y = to + first;
#pragma omp simd
               for (std::size_t i = 0; i < some; ++i) store(y[i], factor[i] != 0 ? load(x[i]) * factor[i] : 0.0F);
             }
           },
           64, 1);
  });
}

}  // namespace detail

/// Zeroes each element with probability p and scales the rest by 1/(1-p). Element: its row-major position.
inline tensor dropout(context& c, const tensor& x, double p, const dropout_key& key) {
  require_some("dropout", x.shape());
  require<error>(p >= 0 && p <= 1, "dropout with p = {} (it is a probability): use 0 to 1", p);
  if (p == 0) return x;
  const tensor in = row_major(c, computable(c, x)), y = c.make(x.shape(), in.layout());
  with_operand(in.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    detail::masked(c, in.as<T>(), y.as<T>(), static_cast<std::size_t>(elements(x.shape())), detail::mask{p, key});
  });
  return cast(c, y, x.precision());
}
inline tensor dropout_backward(context& c, const tensor& dy, double p, const dropout_key& key) {
  return dropout(c, dy, p, key);
}

}  // namespace comp::host
