// SPDX-License-Identifier: Apache-2.0
// Transposed matrices, many of them in one launch: the channels of pictures beside their pixels and back; and the two
// axes of attention's heads exchanged.
#pragma once

#include "support/rows.cuh"

namespace comp::cuda {

namespace detail {

inline constexpr index tile = 32;

/// A block of 32 by 8 threads moves a tile of 32 by 32 through shared memory: both sides are accessed along rows.
template <class T>
__global__ void __launch_bounds__(block_size)
    transpose_tiles(pointer<const T> from, pointer<T> to, index rows, index columns, index tiles_across) {
  __shared__ shared_array<T, tile*(tile + 1)> values;
  const index of_matrix = static_cast<index>(blockIdx.y) * rows * columns;
  const index row = blockIdx.x / tiles_across * tile, column = blockIdx.x % tiles_across * tile;
  const index across = column + threadIdx.x;
  for (index y = threadIdx.y; y < tile; y += 8) {
    if (row + y < rows && across < columns) {
      values[static_cast<std::size_t>(y * (tile + 1) + threadIdx.x)] =
          static_cast<T>(from[of_matrix + (row + y) * columns + across]);
    }
  }
  __syncthreads();
  const index down = row + threadIdx.x;
  for (index y = threadIdx.y; y < tile; y += 8) {
    if (column + y < columns && down < rows) {
      to[of_matrix + (column + y) * rows + down] =
          static_cast<T>(values[static_cast<std::size_t>(threadIdx.x * (tile + 1) + y)]);
    }
  }
}

template <class T>
struct middle_swapped {
  static constexpr bool one_pass = true;
  pointer<const T> from;
  pointer<T> to;
  index i, j, width;
  /// Row r of the result, counted as [b][j][i].
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const index b = r / (i * j), of_j = r / i % j, of_i = r % i;
    const pointer<const T> source = from + ((b * i + of_i) * j + of_j) * width;
    for (index at = lanes.rank() * N; at < width; at += Lanes::count * N) {
      float v[N];
      load_all<N, T>(source + at, v);
      store_all<N, T>(to + (r * width + at), v);
    }
  }
};

}  // namespace detail

template <class T>
void transpose(stream on, const T* from, T* to, index batch, index rows, index columns) {
  if (batch == 0 || rows == 0 || columns == 0) return;
  const index across = (columns + detail::tile - 1) / detail::tile, down = (rows + detail::tile - 1) / detail::tile;
  for (index first = 0; first < batch; first += 65535) {  // grid.y has 16 bits
    const index some = batch - first < 65535 ? batch - first : 65535, before = first * rows * columns;
    launch(on, {dim3{static_cast<unsigned>(across * down), static_cast<unsigned>(some)}, dim3{32, 8}},
           detail::transpose_tiles<T>, from + before, to + before, rows, columns, across);
  }
}
template <class T>
void swap_middle(stream on, const T* from, T* to, index batch, index i, index j, index width) {
  constexpr int N = wide<T>;
  for_rows<N>(on, batch * i * j, width, fits<N>(from) && fits<N>(to), detail::middle_swapped<T>{from, to, i, j, width});
}

}  // namespace comp::cuda
