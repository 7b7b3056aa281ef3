// SPDX-License-Identifier: Apache-2.0
// What graph attention needs around its softmax (edge_softmax.cuh), for several heads: values of edges from values of
// their two nodes, and sums over the edges of each node. One thread or one warp computes each sum in the order of the
// edges, without atomics, so that results have the same bits in each run.
#pragma once

#include "support/edge_lanes.cuh"
#include "support/over_elements.cuh"

namespace comp::cuda {

namespace detail {

/// Returns: the number of the edge at position k of the lists.
__device__ __forceinline__ index edge_at(pointer<const std::int32_t> edge, index k) { return edge ? edge[k] : k; }

/// Scores N neighbouring heads of one edge.
template <class T>
struct edge_scores_functor {
  pointer<const T> target, source;
  pointer<const std::int32_t> row, column;
  pointer<T> y;
  index heads;
  float slope;
  template <int N>
  __device__ void at(index i) const {
    const index e = i / heads, head = i % heads;
    float sum[N], more[N];
    load_all<N, T>(target + (row[e] * heads + head), sum);
    load_all<N, T>(source + (column[e] * heads + head), more);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum[j] += more[j];
      sum[j] = sum[j] > 0 ? sum[j] : sum[j] * slope;
    }
    store_all<N, T>(y + i, sum);
  }
};

/// A warp sums the gradients of one node and of the heads that edge_lanes.cuh gives it.
template <class T>
__global__ void __launch_bounds__(block_size)
    edge_scores_gradient(pointer<const T> dy, pointer<const T> own, pointer<const T> other,
                         pointer<const std::int32_t> begin, pointer<const std::int32_t> others,
                         pointer<const std::int32_t> edge, pointer<T> d_own, index nodes, index heads, float slope,
                         int together) {
  const edge_lane r = edges_of_lane(begin, nodes, heads, together);
  const bool there = r.node < nodes;
  const index at = r.node * heads + r.head;
  const float mine = there ? widen<T>(own[at]) : 0.0F;
  float total = 0;
  for (index k = r.first; k < r.end; k += r.step) {
    const float sum = mine + widen<T>(other[others[k] * heads + r.head]);
    const float d = widen<T>(dy[edge_at(edge, k) * heads + r.head]);
    total += sum > 0 ? d : d * slope;
  }
  total = combine_edges(total, together, sum_of{});
  if (there && static_cast<int>(threadIdx.x % 32) < together) d_own[at] = narrow<T>(total);
}

/// Sums N neighbouring features of one node and head.
template <class T>
struct weighted_sums_functor {
  pointer<const T> share, x;
  pointer<const std::int32_t> begin, other, edge;
  pointer<T> y;
  index heads, width;
  template <int N>
  __device__ void at(index i) const {
    const index features = heads * width, node = i / features, feature = i % features, head = feature / width;
    float total[N] = {};
    for (index k = begin[node]; k < begin[node + 1]; ++k) {
      const float part = widen<T>(share[edge_at(edge, k) * heads + head]);
      float from[N];
      load_all<N, T>(x + (other[k] * features + feature), from);
#pragma unroll
      for (int j = 0; j < N; ++j) total[j] += part * from[j];
    }
    store_all<N, T>(y + i, total);
  }
};

/// `lanes` threads, a power of two up to 32, compute the product of one edge and head, N features at once.
template <int N, class T>
__global__ void __launch_bounds__(block_size)
    edge_products(pointer<const T> a, pointer<const T> b, pointer<const std::int32_t> row,
                  pointer<const std::int32_t> column, pointer<T> y, index edges, index heads, index width,
                  index lanes) {
  const index at = (static_cast<index>(blockIdx.x) * block_size + threadIdx.x) / lanes, lane = threadIdx.x % lanes;
  const bool there = at < edges * heads;
  float total = 0;
  if (there) {
    const index e = at / heads, head = at % heads;
    const index of_a = (row[e] * heads + head) * width, of_b = (column[e] * heads + head) * width;
    for (index i = lane * N; i < width; i += lanes * N) {
      float left[N], right[N];
      load_all<N, T>(a + (of_a + i), left);
      load_all<N, T>(b + (of_b + i), right);
#pragma unroll
      for (int j = 0; j < N; ++j) total += left[j] * right[j];
    }
  }
  for (int bits = static_cast<int>(lanes) / 2; bits > 0; bits /= 2) total += __shfl_xor_sync(all_lanes, total, bits);
  if (there && lane == 0) y[at] = narrow<T>(total);
}

template <int N, class T>
void launch_edge_products(stream on, const T* a, const T* b, const std::int32_t* row, const std::int32_t* column, T* y,
                          index edges, index heads, index width) {
  index lanes = 1;
  while (lanes < 32 && lanes * N < width) lanes *= 2;
  const index threads = edges * heads * lanes;
  launch(on, {dim3{static_cast<unsigned>((threads + block_size - 1) / block_size)}, block_size}, edge_products<N, T>, a,
         b, row, column, y, edges, heads, width, lanes);
}

}  // namespace detail

template <class T>
void edge_scores(stream on, const T* target, const T* source, const std::int32_t* row, const std::int32_t* column, T* y,
                 index edges, index heads, float slope) {
  constexpr int N = wide<T>;
  const bool packs = heads % N == 0 && fits<N>(target) && fits<N>(source) && fits<N>(y);
  for_elements<N>(on, edges * heads, packs ? 0 : -1,
                  detail::edge_scores_functor<T>{target, source, row, column, y, heads, slope});
}
template <class T>
void edge_scores_backward(stream on, const T* dy, const T* own, const T* other, const std::int32_t* begin,
                          const std::int32_t* others, const std::int32_t* edge, T* d_own, index nodes, index heads,
                          float slope) {
  if (heads == 0) return;
  launch(on, {blocks_for_edges(nodes, heads), block_size}, detail::edge_scores_gradient<T>, dy, own, other, begin,
         others, edge, d_own, nodes, heads, slope, heads_together(heads));
}
template <class T>
void weighted_sums(stream on, const T* share, const T* x, const std::int32_t* begin, const std::int32_t* other,
                   const std::int32_t* edge, T* y, index nodes, index heads, index width) {
  constexpr int N = wide<T>;
  const bool packs = width % N == 0 && fits<N>(x) && fits<N>(y);
  for_elements<N>(on, nodes * heads * width, packs ? 0 : -1,
                  detail::weighted_sums_functor<T>{share, x, begin, other, edge, y, heads, width});
}
template <class T>
void edge_products(stream on, const T* a, const T* b, const std::int32_t* row, const std::int32_t* column, T* y,
                   index edges, index heads, index width) {
  constexpr int N = wide<T>;
  if (width % N == 0 && fits<N>(a) && fits<N>(b)) {
    detail::launch_edge_products<N>(on, a, b, row, column, y, edges, heads, width);
  } else {
    detail::launch_edge_products<1>(on, a, b, row, column, y, edges, heads, width);
  }
}

}  // namespace comp::cuda
