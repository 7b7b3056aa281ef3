// SPDX-License-Identifier: Apache-2.0
#include "embedding.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T)                                                                         \
  template void embedding(stream, const float*, const std::int32_t*, T*, index, index, index); \
  template void embedding_backward(stream, const T*, const std::int32_t*, float*, index, index, index);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
