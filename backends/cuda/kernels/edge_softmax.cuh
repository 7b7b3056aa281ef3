// SPDX-License-Identifier: Apache-2.0
// Softmax over the edges that enter each node, for each head: graph attention. A warp for each node and head.
// Edges are sorted by the node that they enter: those of node v are begin[v] to begin[v + 1].
#pragma once

#include <comp_native/math/elementwise.hpp>

#include "support/lanes.cuh"
#include "support/packs.cuh"

namespace comp::cuda {

namespace detail {

struct edge_range {
  index node, head, begin, end;
};
/// The edges of this warp; an empty range where there is none left.
__device__ __forceinline__ edge_range edges_of_warp(pointer<const std::int32_t> begin, index nodes, index heads) {
  const index at = static_cast<index>(blockIdx.x) * (block_size / 32) + threadIdx.x / 32;
  if (at >= nodes * heads) return {nodes, 0, 0, 0};
  const index node = at / heads;
  return {node, at % heads, begin[node], begin[node + 1]};
}

template <class T>
__global__ void __launch_bounds__(block_size)
    edge_softmax(pointer<const T> x, pointer<const std::int32_t> begin, pointer<T> y, index nodes, index heads) {
  const edge_range r = edges_of_warp(begin, nodes, heads);
  const index first = r.begin + threadIdx.x % 32;
  float largest = -infinity, total = 0;
  for (index e = first; e < r.end; e += 32) largest = fmaxf(largest, widen<T>(x[e * heads + r.head]));
  largest = combine_warp(largest, largest_of{});
  for (index e = first; e < r.end; e += 32) total += native::math::exp_of(widen<T>(x[e * heads + r.head]) - largest);
  const float factor = 1.0F / combine_warp(total, sum_of{});
  for (index e = first; e < r.end; e += 32) {
    y[e * heads + r.head] = narrow<T>(native::math::exp_of(widen<T>(x[e * heads + r.head]) - largest) * factor);
  }
}
template <class T>
__global__ void __launch_bounds__(block_size)
    edge_softmax_gradient(pointer<const T> dy, pointer<const T> y, pointer<const std::int32_t> begin, pointer<T> dx,
                          index nodes, index heads) {
  const edge_range r = edges_of_warp(begin, nodes, heads);
  const index first = r.begin + threadIdx.x % 32;
  float dot = 0;
  for (index e = first; e < r.end; e += 32) dot += widen<T>(dy[e * heads + r.head]) * widen<T>(y[e * heads + r.head]);
  dot = combine_warp(dot, sum_of{});
  for (index e = first; e < r.end; e += 32) {
    const index at = e * heads + r.head;
    dx[at] = narrow<T>(native::math::softmax_gradient(widen<T>(dy[at]), widen<T>(y[at]), dot));
  }
}
inline dim3 blocks_of_warps(index warps) {
  constexpr index each = block_size / 32;
  return dim3{static_cast<unsigned>((warps + each - 1) / each)};
}

}  // namespace detail

template <class T>
void edge_softmax(stream on, const T* x, const std::int32_t* begin, T* y, index nodes, index heads) {
  launch(on, {detail::blocks_of_warps(nodes * heads), block_size}, detail::edge_softmax<T>, x, begin, y, nodes, heads);
}
template <class T>
void edge_softmax_backward(stream on, const T* dy, const T* y, const std::int32_t* begin, T* dx, index nodes,
                           index heads) {
  launch(on, {detail::blocks_of_warps(nodes * heads), block_size}, detail::edge_softmax_gradient<T>, dy, y, begin, dx,
         nodes, heads);
}

}  // namespace comp::cuda
