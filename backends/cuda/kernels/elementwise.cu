// SPDX-License-Identifier: Apache-2.0
#include "elementwise.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T) template void run_chain(stream, const T*, T*, index, std::span<const chain_step<T>>);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

void attention_seed(stream on, const native::math::dropout_mask& mask, const std::uint64_t* draws, std::uint64_t* to) {
  launch(on, {1, 1}, detail::write_attention_seed, mask, draws, to);
}

}  // namespace comp::cuda
