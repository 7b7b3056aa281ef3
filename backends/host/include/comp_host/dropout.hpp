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

/// Four random words for a counter and a key.
COMP_HOST_INLINE void philox(std::uint32_t (&word)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{word[0]} * 0xD2511F53U, b = std::uint64_t{word[2]} * 0xCD9E8D57U;
    word[0] = static_cast<std::uint32_t>(b >> 32) ^ word[1] ^ key0;
    word[2] = static_cast<std::uint32_t>(a >> 32) ^ word[3] ^ key1;
    word[1] = static_cast<std::uint32_t>(b);
    word[3] = static_cast<std::uint32_t>(a);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

namespace detail {

/// y = x where kept, scaled; 0 elsewhere. Groups of four elements share a counter; n may end within a group.
template <class T>
void masked(context& c, const T* from, T* to, std::size_t n, double p, const dropout_key& key) {
  const auto least = static_cast<std::uint64_t>(std::ceil(p * 0x1p32));
  const float scale = p < 1 ? static_cast<float>(1 / (1 - p)) : 0.0F;
  const auto draw0 = static_cast<std::uint32_t>(key.draw), draw1 = static_cast<std::uint32_t>(key.draw >> 32);
  const auto key0 = static_cast<std::uint32_t>(key.seed), key1 = static_cast<std::uint32_t>(key.seed >> 32);
  const auto group = [=](std::size_t g, std::size_t some) COMP_HOST_KERNEL {
    std::uint32_t word[4] = {static_cast<std::uint32_t>(g), static_cast<std::uint32_t>(std::uint64_t{g} >> 32), draw0,
                             draw1};
    philox(word, key0, key1);
    for (std::size_t k = 0; k < some; ++k)
      store(to[4 * g + k], word[k] >= least ? load(from[4 * g + k]) * scale : 0.0F);
  };
  c.run_kernel([&] {
    launch(
        n / 4,
        [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
          for (std::size_t g = begin; g < end; ++g) group(g, 4);
        },
        2048);
    if (n % 4) group(n / 4, n % 4);
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
    detail::masked(c, in.as<T>(), y.as<T>(), static_cast<std::size_t>(elements(x.shape())), p, key);
  });
  return cast(c, y, x.precision());
}
inline tensor dropout_backward(context& c, const tensor& dy, double p, const dropout_key& key) {
  return dropout(c, dy, p, key);
}

}  // namespace comp::host
