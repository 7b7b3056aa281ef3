// SPDX-License-Identifier: Apache-2.0
#include "elementwise.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T) template void run_chain(stream, const T*, T*, index, std::span<const chain_step<T>>);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

namespace detail {

/// Draws the seed from Philox counters that no element of a mask uses, so that seed and masks are independent.
__global__ void write_attention_seed(native::math::dropout_mask mask, pointer<const std::uint64_t> draws,
                                     pointer<std::uint64_t> to) {
  const native::math::dropout_mask now = mask_of(mask, draws);
  std::uint32_t word[4][1] = {{0}, {0x80000000U}, {now.draw[0]}, {now.draw[1]}};
  native::math::philox(word, now.key[0], now.key[1]);
  to[0] = std::uint64_t{word[1][0]} << 32 | word[0][0];
  to[1] = 0;
}

}  // namespace detail

void attention_seed(stream on, const native::math::dropout_mask& mask, const std::uint64_t* draws, std::uint64_t* to) {
  launch(on, {1, 1}, detail::write_attention_seed, mask, draws, to);
}

}  // namespace comp::cuda
