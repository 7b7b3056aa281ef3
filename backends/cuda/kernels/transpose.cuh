// SPDX-License-Identifier: Apache-2.0
// Transposes many matrices in one launch, which changes images between NCHW and NHWC, and exchanges two axes for the
// heads of attention.
#pragma once

#include "support/packs.cuh"

namespace comp::cuda {

namespace detail {

inline constexpr index tile = 32;

/// A block of 32 by 8 threads moves a tile of 32 by 32 through shared memory, so that both sides are accessed along
/// rows.
/// Rows of the tile have 33 elements there, which puts neighbours of a column into different banks.
template <class T>
__global__ void __launch_bounds__(block_size)
    transpose_tiles(pointer<const T> from, pointer<T> to, index rows, index columns, unsigned tiles_across) {
  __shared__ shared_array<T, tile*(tile + 1)> values;
  const index of_matrix = static_cast<index>(blockIdx.y) * rows * columns;
  const index row = blockIdx.x / tiles_across * tile, column = blockIdx.x % tiles_across * tile;  // 32-bit divisions
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

/// Writes element [b][i][j][w] of `from` to [b][j][i][w]. Each thread moves a pack of N neighbours, as bits. width and
/// n count packs. Count has 32 bits for less than 2^31 elements: 64-bit divisions take longer than the memory.
template <int N, class Count, class T>
__global__ void __launch_bounds__(block_size)
    middle_swapped(pointer<const T> from, pointer<T> to, Count i, Count j, Count width, Count n) {
  const Count place = static_cast<Count>(blockIdx.x) * block_size + threadIdx.x;
  if (place >= n) return;
  const Count row = place / width, of_bj = row / i, b = of_bj / j;
  const Count source = ((b * i + (row - of_bj * i)) * j + (of_bj - b * j)) * width + (place - row * width);
  store_pack<N, T>(to + static_cast<index>(place) * N, load_pack<N, T>(from + static_cast<index>(source) * N));
}
template <class Count, int N, class T>
void swap_middle_by(stream on, const T* from, T* to, index n, index i, index j, index width) {
  const launch_shape shape{dim3{static_cast<unsigned>((n / N + block_size - 1) / block_size)}, block_size};
  launch(on, shape, middle_swapped<N, Count, T>, from, to, static_cast<Count>(i), static_cast<Count>(j),
         static_cast<Count>(width / N), static_cast<Count>(n / N));
}
template <class Count, class T>
void swap_middle_by(stream on, const T* from, T* to, index n, index i, index j, index width) {
  constexpr int N = wide<T>;
  if (width % N == 0 && fits<N>(from) && fits<N>(to)) return swap_middle_by<Count, N>(on, from, to, n, i, j, width);
  swap_middle_by<Count, 1>(on, from, to, n, i, j, width);
}

}  // namespace detail

template <class T>
void transpose(stream on, const T* from, T* to, index batch, index rows, index columns) {
  if (batch == 0 || rows == 0 || columns == 0) return;
  const index across = (columns + detail::tile - 1) / detail::tile, down = (rows + detail::tile - 1) / detail::tile;
  require<error>(across * down < index{1} << 31,
                 "transposing ({},{}) in one launch (a grid has 2^31 blocks at most): split it", rows, columns);
  for (index first = 0; first < batch; first += 65535) {  // grid.y has 16 bits
    const index some = batch - first < 65535 ? batch - first : 65535, before = first * rows * columns;
    launch(on, {dim3{static_cast<unsigned>(across * down), static_cast<unsigned>(some)}, dim3{32, 8}},
           detail::transpose_tiles<T>, from + before, to + before, rows, columns, static_cast<unsigned>(across));
  }
}
template <class T>
void swap_middle(stream on, const T* from, T* to, index batch, index i, index j, index width) {
  const index n = batch * i * j * width;
  if (n == 0) return;
  require<error>(n < index{1} << 38, "exchanging axes of {} elements in one launch (2^38 is too many): split it", n);
  if (n < index{1} << 31) return detail::swap_middle_by<std::uint32_t>(on, from, to, n, i, j, width);
  detail::swap_middle_by<index>(on, from, to, n, i, j, width);
}

}  // namespace comp::cuda
