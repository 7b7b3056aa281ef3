// SPDX-License-Identifier: Apache-2.0
#include "edge_softmax.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T)                                                                 \
  template void edge_softmax(stream, const T*, const std::int32_t*, T*, index, index); \
  template void edge_softmax_backward(stream, const T*, const T*, const std::int32_t*, T*, index, index);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
