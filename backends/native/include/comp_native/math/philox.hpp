// SPDX-License-Identifier: Apache-2.0
// Dropout masks by the counter-based generator Philox 4x32-10. A mask is a function of the key and the element's
// position, and not of threads, layout or device, so that all plans and devices drop the same elements.
// Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <cmath>
#include <comp_native/device.hpp>
#include <cstddef>
#include <cstdint>

#include "host_device.hpp"

namespace comp::native::math {

/// Replaces `Lanes` counters by their random words, side by side: word[j][lane] is word j of a lane's counter.
template <std::size_t Lanes>
COMP_HD void philox(std::uint32_t (&word)[4][Lanes], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
#ifdef _OPENMP
#pragma omp simd
#endif
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

/// A mask: an element is kept and scaled if its random word is at least `least`.
struct dropout_mask {
  std::uint32_t least;
  float scale;  // the factor of kept elements; 0: none is kept
  std::uint32_t draw[2], key[2];

  dropout_mask() = default;
  dropout_mask(double p, const dropout_key& k)
      : least{static_cast<std::uint32_t>(std::fmin(std::ceil(p * 0x1p32), 0x1p32 - 1))},
        scale{p < 1 ? static_cast<float>(1 / (1 - p)) : 0.0F},
        draw{static_cast<std::uint32_t>(k.draw), static_cast<std::uint32_t>(k.draw >> 32)},
        key{static_cast<std::uint32_t>(k.seed), static_cast<std::uint32_t>(k.seed >> 32)} {}

  /// Returns the mask of the draw that comes `more` draws after this one.
  COMP_HD dropout_mask later(std::uint64_t more) const {
    const std::uint64_t then = (std::uint64_t{draw[1]} << 32 | draw[0]) + more;
    dropout_mask moved = *this;
    moved.draw[0] = static_cast<std::uint32_t>(then);
    moved.draw[1] = static_cast<std::uint32_t>(then >> 32);
    return moved;
  }
  /// Sets factor[4 * i + j] to the factor of element 4 * (group + i) + j.
  template <std::size_t Groups>
  COMP_HD void factors(std::uint64_t group, float (&factor)[4 * Groups]) const {
    std::uint32_t word[4][Groups];
    for (std::size_t i = 0; i < Groups; ++i) {
      word[0][i] = static_cast<std::uint32_t>(group + i);
      word[1][i] = static_cast<std::uint32_t>((group + i) >> 32);
      word[2][i] = draw[0];
      word[3][i] = draw[1];
    }
    philox(word, key[0], key[1]);
#ifdef _OPENMP
#pragma omp simd
#endif
    for (std::size_t i = 0; i < Groups; ++i) {
      for (std::size_t j = 0; j < 4; ++j) factor[4 * i + j] = word[j][i] >= least ? scale : 0.0F;
    }
  }
};

}  // namespace comp::native::math
