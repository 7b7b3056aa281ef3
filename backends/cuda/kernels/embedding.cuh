// SPDX-License-Identifier: Apache-2.0
// Rows of a table by index, and the gradient of the table, with the same bits in each run. An index outside of the
// table gives NaN in the forward and is left out of the backward.
// The backward first lists, for each row of the table, the places that read it (embedding_lists.cuh). It adds up to 64
// places one after another, as the host does. A longer list, such as that of the padding token, is cut into chunks of
// 64, whose sums are then added in order.
#pragma once

#include "embedding_lists.cuh"
#include "support/rows.cuh"

namespace comp::cuda {

namespace detail {

template <class T>
struct embedding_rows {
  static constexpr bool one_pass = true;
  pointer<const float> table;
  pointer<const std::int32_t> at;
  pointer<T> y;
  index width, entries;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const index from = at[r];
    const bool there = from >= 0 && from < entries;
    for (index c = lanes.rank() * N; c < width; c += Lanes::count * N) {
      float v[N];
      if (there) {
        load_all<N, float>(table + (from * width + c), v);
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = nanf("");
      }
      store_all<N, T>(y + (r * width + c), v);
    }
  }
};

/// Adds the `count` rows of `from` that begin at start(0), start(1), ... to total, one after another. Several rows are
/// loaded at once, because a load takes much longer than an addition.
template <int N, class T, class F>
__device__ __forceinline__ void add_in_order(float (&total)[N], pointer<const T> from, index count, F start) {
  constexpr int batch = N == 1 ? 8 : 32 / N;
  index k = 0;
  for (; k + batch <= count; k += batch) {
    float v[batch][N];
#pragma unroll
    for (int b = 0; b < batch; ++b) load_all<N, T>(from + start(k + b), v[b]);
#pragma unroll
    for (int b = 0; b < batch; ++b) {
#pragma unroll
      for (int j = 0; j < N; ++j) total[j] += v[b][j];
    }
  }
  for (; k < count; ++k) {
    float v[N];
    load_all<N, T>(from + start(k), v);
#pragma unroll
    for (int j = 0; j < N; ++j) total[j] += v[j];
  }
}

/// A warp sums the rows of one chunk (grid.x) for a stripe of columns (grid.y).
template <int N, class T>
__global__ void __launch_bounds__(block_size)
    embedding_sums(pointer<const T> dy, const embedding_lists lists, pointer<float> partial, pointer<float> gradient,
                   index width) {
  const index number = static_cast<index>(blockIdx.x) * (block_size / 32) + threadIdx.x / 32;
  if (number >= static_cast<index>(lists.used[made_chunks])) return;
  const embedding_chunk c = lists.chunk[number];
  const pointer<const index> place = lists.place + c.begin;
  const pointer<float> to = c.partial < 0 ? gradient + c.row * width : partial + c.partial * width;
  const index stripe = static_cast<index>(blockIdx.y) * 32 + threadIdx.x % 32;
  for (index column = stripe * N; column < width; column += static_cast<index>(gridDim.y) * 32 * N) {
    float total[N] = {};
    if (c.partial < 0) load_all<N, float>(to + column, total);
    add_in_order<N, T>(total, dy + column, c.count, [&](index k) { return place[k] * width; });
    store_all<N, float>(to + column, total);
  }
}
/// A warp adds the partial sums of one row whose list was cut, for a stripe of columns.
template <int N>
__global__ void __launch_bounds__(block_size)
    embedding_joints(const embedding_lists lists, pointer<const float> partial, pointer<float> gradient, index width) {
  const index number = static_cast<index>(blockIdx.x) * (block_size / 32) + threadIdx.x / 32;
  if (number >= static_cast<index>(lists.used[joined_rows])) return;
  const embedding_joint c = lists.joint[number];
  const pointer<float> to = gradient + c.row * width;
  const index stripe = static_cast<index>(blockIdx.y) * 32 + threadIdx.x % 32;
  for (index column = stripe * N; column < width; column += static_cast<index>(gridDim.y) * 32 * N) {
    float total[N];
    load_all<N, float>(to + column, total);
    add_in_order<N, float>(total, partial + (c.partial * width + column), c.count, [&](index k) { return k * width; });
    store_all<N, float>(to + column, total);
  }
}

template <int N, class T>
void sum_lists(stream on, const T* dy, const embedding_lists& lists, float* partial, float* gradient, index width,
               const embedding_room& room) {
  constexpr index warps = block_size / 32, most_stripes = 1024;
  const index stripes = (width + 32 * N - 1) / (32 * N);
  const auto grid = [&](index units) {
    return dim3{static_cast<unsigned>((units + warps - 1) / warps),
                static_cast<unsigned>(stripes < most_stripes ? stripes : most_stripes)};
  };
  launch(on, {grid(room.chunks), block_size}, embedding_sums<N, T>, dy, lists, partial, gradient, width);
  launch(on, {grid(room.joints), block_size}, embedding_joints<N>, lists, partial, gradient, width);
}

}  // namespace detail

template <class T>
void embedding(stream on, const float* table, const std::int32_t* at, T* y, index n, index width, index entries) {
  constexpr int N = wide<T>;
  for_rows<N>(on, n, width, fits<N>(table) && fits<N>(y), detail::embedding_rows<T>{table, at, y, width, entries});
}
template <class T>
void embedding_backward(stream on, const T* dy, const std::int32_t* at, float* gradient, index n, index width,
                        index entries, float* scratch) {
  if (n == 0 || width == 0) return;
  const detail::embedding_room room{n, entries};
  auto* used = reinterpret_cast<unsigned long long*>(scratch);
  auto* chunk = reinterpret_cast<detail::embedding_chunk*>(used + detail::embedding_parts);
  auto* joint = reinterpret_cast<detail::embedding_joint*>(chunk + room.chunks);
  auto* place = reinterpret_cast<index*>(joint + room.joints);
  float* partial = scratch + (embedding_scratch(n, width, entries) - room.partials * width);
  check(cudaMemsetAsync(used, 0, detail::embedding_parts * sizeof *used, on), "clearing the counts of an embedding");
  const detail::embedding_lists lists{used, place, chunk, joint};
  constexpr index reached = index{1} << 31;  // a 32-bit index reaches no further rows
  const index rows = entries < reached ? entries : reached;
  const auto blocks = static_cast<unsigned>((rows + detail::rows_of_block - 1) / detail::rows_of_block);
  launch(on, {dim3{blocks}, detail::list_threads}, detail::embedding_list, at, n, rows, lists);
  constexpr int N = wide<T>;
  if (width % N == 0 && fits<N>(dy) && fits<N>(gradient) && fits<N>(partial)) {
    detail::sum_lists<N>(on, dy, lists, partial, gradient, width, room);
  } else {
    detail::sum_lists<1>(on, dy, lists, partial, gradient, width, room);
  }
}

}  // namespace comp::cuda
