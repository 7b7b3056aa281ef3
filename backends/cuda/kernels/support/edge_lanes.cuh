// SPDX-License-Identifier: Apache-2.0
// The edges and the head that a lane works on when a warp works on the edges of one node. Neighbouring lanes have
// neighbouring heads, as these lie in memory, and then the next edge, so that a warp reads whole lines of memory.
// If few edges enter each node, some lanes have no work.
#pragma once

#include "lanes.cuh"

namespace comp::cuda {

/// Returns: how many heads one warp works on: the largest power of two that divides their number, 32 at most.
inline index heads_together(index heads) {
  const index power = heads & -heads;
  return power < 32 ? power : 32;
}

/// A lane's work: the edges first, first + step, ... before end, of one node and head. There are none for lanes beyond
/// the last node.
struct edge_lane {
  index node, head, first, end, step;
};
__device__ __forceinline__ edge_lane edges_of_lane(pointer<const std::int32_t> begin, index nodes, index heads,
                                                   int together) {
  const index at = static_cast<index>(blockIdx.x) * (block_size / 32) + threadIdx.x / 32, groups = heads / together;
  if (at >= nodes * groups) return {nodes, 0, 0, 0, 1};
  const int lane = static_cast<int>(threadIdx.x % 32);
  const index node = at / groups;
  return {node, at % groups * together + lane % together, begin[node] + lane / together, begin[node + 1],
          32 / together};
}
/// Combines v over the edges of a node, for each of the warp's heads. All lanes of a head get the result.
template <class F>
__device__ __forceinline__ float combine_edges(float v, int together, F f) {
  for (int bits = 16; bits >= together; bits /= 2) v = f(v, __shfl_xor_sync(all_lanes, v, bits));
  return v;
}
inline dim3 blocks_for_edges(index nodes, index heads) {
  constexpr index each = block_size / 32;
  const index warps = nodes * (heads / heads_together(heads));
  return dim3{static_cast<unsigned>((warps + each - 1) / each)};
}

}  // namespace comp::cuda
