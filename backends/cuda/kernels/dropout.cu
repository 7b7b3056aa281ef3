// SPDX-License-Identifier: Apache-2.0
#include "dropout.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

#define COMP_DEFINE(T) \
  template void dropout(stream, const T*, T*, index, double, const native::dropout_key&, const std::uint64_t*);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
