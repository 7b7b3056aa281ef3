// SPDX-License-Identifier: Apache-2.0
#include "losses.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T)                                                                                               \
  template void cross_entropy(stream, const T*, const std::int32_t*, float*, float*, double*, float*, index, index); \
  template void cross_entropy_backward(stream, const T*, const std::int32_t*, const float*, const float*, T*, index, \
                                       index, double);                                                               \
  template void nll_loss(stream, const T*, const std::int32_t*, float*, double*, float*, index, index);              \
  template void nll_loss_backward(stream, const std::int32_t*, const float*, T*, index, index, double);              \
  template void mse_loss(stream, const T*, const T*, index, double*, float*);                                        \
  template void mse_loss_backward(stream, const T*, const T*, T*, index, double);                                    \
  template void binary_cross_entropy(stream, const T*, float, index, double*, float*);                               \
  template void binary_cross_entropy_backward(stream, const T*, float, T*, index, double);                           \
  template void count_correct(stream, const T*, const std::int32_t*, int*, index, index);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
