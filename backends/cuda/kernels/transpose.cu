// SPDX-License-Identifier: Apache-2.0
#include "support/instantiate.cuh"
#include "transpose.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T)                                                \
  template void transpose(stream, const T*, T*, index, index, index); \
  template void swap_middle(stream, const T*, T*, index, index, index, index);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
