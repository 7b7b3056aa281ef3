// SPDX-License-Identifier: Apache-2.0
#include "edges.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

using node = const std::int32_t*;
#define COMP_DEFINE(T)                                                                                                 \
  template void edge_scores(stream, const T*, const T*, node, node, T*, index, index, float);                          \
  template void edge_scores_backward(stream, const T*, const T*, const T*, node, node, node, T*, index, index, float); \
  template void weighted_sums(stream, const T*, const T*, node, node, node, T*, index, index, index);                  \
  template void edge_products(stream, const T*, const T*, node, node, T*, index, index, index);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
