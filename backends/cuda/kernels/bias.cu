// SPDX-License-Identifier: Apache-2.0
#include "bias.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T) template void add_bias(stream, const T*, const float*, T*, index, index, bool);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
