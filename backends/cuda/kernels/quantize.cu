// SPDX-License-Identifier: Apache-2.0
#include "quantize.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T)                                                                                     \
  template index largest_magnitudes(stream, const T*, index, float*);                                      \
  template void quantize(stream, const T*, index, index, const float*, index, float*, native::math::e4m3*, \
                         native::math::e4m3*);                                                             \
  template void quantize(stream, const T*, index, index, const float*, index, float*, native::math::e5m2*, \
                         native::math::e5m2*);                                                             \
  template void take_columns(stream, const float*, index, T*, index, index, const float*, bool, bool);
COMP_DEFINE(float)
COMP_DEFINE(bf16)
#undef COMP_DEFINE

}  // namespace comp::cuda
