// SPDX-License-Identifier: Apache-2.0
#include "softmax.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T)                                                            \
  template void softmax(stream, const T*, T*, index, index, const softmax_form&); \
  template void softmax_backward(stream, const T*, const T*, T*, index, index, softmax_kind);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
