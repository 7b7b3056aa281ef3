// SPDX-License-Identifier: Apache-2.0
#include "elementwise.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T) template void run_chain(stream, const T*, T*, index, std::span<const chain_step<T>>);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
