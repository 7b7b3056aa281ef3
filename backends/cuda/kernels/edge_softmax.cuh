// SPDX-License-Identifier: Apache-2.0
// Softmax over the edges that enter each node, for each head of graph attention. A warp works on one node and on
// neighbouring heads. Edges are sorted by the node that they enter: those of node v are begin[v] to begin[v + 1].
#pragma once

#include <comp_native/math/elementwise.hpp>

#include "support/edge_lanes.cuh"
#include "support/packs.cuh"

namespace comp::cuda {

namespace detail {

template <class T>
__global__ void __launch_bounds__(block_size) edge_softmax(pointer<const T> x, pointer<const std::int32_t> begin,
                                                           pointer<T> y, index nodes, index heads, int together) {
  const edge_lane r = edges_of_lane(begin, nodes, heads, together);
  float largest = -infinity, total = 0;
  for (index e = r.first; e < r.end; e += r.step) largest = fmaxf(largest, widen<T>(x[e * heads + r.head]));
  largest = combine_edges(largest, together, largest_of{});
  for (index e = r.first; e < r.end; e += r.step) {
    total += native::math::exp_of(widen<T>(x[e * heads + r.head]) - largest);
  }
  const float factor = 1.0F / combine_edges(total, together, sum_of{});
  for (index e = r.first; e < r.end; e += r.step) {
    y[e * heads + r.head] = narrow<T>(native::math::exp_of(widen<T>(x[e * heads + r.head]) - largest) * factor);
  }
}
template <class T>
__global__ void __launch_bounds__(block_size)
    edge_softmax_gradient(pointer<const T> dy, pointer<const T> y, pointer<const std::int32_t> begin, pointer<T> dx,
                          index nodes, index heads, int together) {
  const edge_lane r = edges_of_lane(begin, nodes, heads, together);
  float dot = 0;
  for (index e = r.first; e < r.end; e += r.step) {
    dot += widen<T>(dy[e * heads + r.head]) * widen<T>(y[e * heads + r.head]);
  }
  dot = combine_edges(dot, together, sum_of{});
  for (index e = r.first; e < r.end; e += r.step) {
    const index at = e * heads + r.head;
    dx[at] = narrow<T>(native::math::softmax_gradient(widen<T>(dy[at]), widen<T>(y[at]), dot));
  }
}

}  // namespace detail

template <class T>
void edge_softmax(stream on, const T* x, const std::int32_t* begin, T* y, index nodes, index heads) {
  if (heads == 0) return;
  launch(on, {blocks_for_edges(nodes, heads), block_size}, detail::edge_softmax<T>, x, begin, y, nodes, heads,
         heads_together(heads));
}
template <class T>
void edge_softmax_backward(stream on, const T* dy, const T* y, const std::int32_t* begin, T* dx, index nodes,
                           index heads) {
  if (heads == 0) return;
  launch(on, {blocks_for_edges(nodes, heads), block_size}, detail::edge_softmax_gradient<T>, dy, y, begin, dx, nodes,
         heads, heads_together(heads));
}

}  // namespace comp::cuda
