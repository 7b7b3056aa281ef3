// SPDX-License-Identifier: Apache-2.0
#include "adaptive_pooling.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T)                                                    \
  template void adaptive_pooling(stream, const T*, T*, const bin_sizes&); \
  template void adaptive_pooling_backward(stream, const T*, T*, const bin_sizes&);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
