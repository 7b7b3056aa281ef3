// SPDX-License-Identifier: Apache-2.0
#include "layer_norm.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T)                                                                                                 \
  template void layer_norm(stream, const T*, const float*, const float*, T*, float*, float*, index, index, double);    \
  template void layer_norm(stream, const layer_norm_sum<T>&, T*, const float*, const float*, T*, float*, float*,       \
                           index, index, double);                                                                      \
  template void layer_norm_backward(stream, const T*, const T*, const float*, const float*, const float*, T*, index,   \
                                    index, const T*);                                                                  \
  template void layer_norm_parameters_backward(stream, const T*, const T*, const float*, const float*, float*, float*, \
                                               index, index, bool, float*);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
