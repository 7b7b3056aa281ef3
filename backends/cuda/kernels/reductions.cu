// SPDX-License-Identifier: Apache-2.0
#include "reductions.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T) template void column_sums(stream, const T*, float*, index, index, bool, float*);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
