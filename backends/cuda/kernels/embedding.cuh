// SPDX-License-Identifier: Apache-2.0
// Rows of a table by index, and their gradient, added in the order of the indices: the same bits every time, and as the
// host adds them. An index that is not in the table gives NaN forward, and is left out backward.
// Not here: speed where very many indices are equal; they are added one after another, by one block for 256 columns.
#pragma once

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

inline constexpr index rows_of_block = 32;  // of the table: grid.x; columns: grid.y

/// A tile of indices at a time: those of this block's rows are packed in order, then added in order.
template <class T>
__global__ void __launch_bounds__(block_size)
    embedding_gradient(pointer<const T> dy, pointer<const std::int32_t> at, index n, pointer<float> gradient,
                       index width, index entries) {
  __shared__ shared_array<index, block_size> found;
  __shared__ shared_array<int, block_size / 32> of_warp;
  const index first = static_cast<index>(blockIdx.x) * rows_of_block;
  const index last = first + rows_of_block < entries ? first + rows_of_block : entries;
  const index column = static_cast<index>(blockIdx.y) * block_size + threadIdx.x;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (index begin = 0; begin < n; begin += block_size) {
    const index i = begin + threadIdx.x;
    const index row = i < n ? static_cast<index>(at[i]) : -1;
    const unsigned votes = __ballot_sync(all_lanes, row >= first && row < last);
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    for (unsigned w = 0; w < block_size / 32; ++w) {
      const int some = of_warp[w];
      if (w < warp) before += some;
      all += some;
    }
    if (votes >> lane & 1U) found[static_cast<unsigned>(before + __popc(votes & ((1U << lane) - 1)))] = i;
    __syncthreads();
    for (int k = 0; k < all && column < width; ++k) {
      const index from = found[static_cast<unsigned>(k)];
      const pointer<float> to = gradient + (static_cast<index>(at[from]) * width + column);
      *to = *to + widen<T>(dy[from * width + column]);
    }
  }
}

}  // namespace detail

template <class T>
void embedding(stream on, const float* table, const std::int32_t* at, T* y, index n, index width, index entries) {
  constexpr int N = wide<T>;
  for_rows<N>(on, n, width, fits<N>(table) && fits<N>(y), detail::embedding_rows<T>{table, at, y, width, entries});
}
template <class T>
void embedding_backward(stream on, const T* dy, const std::int32_t* at, float* gradient, index n, index width,
                        index entries) {
  if (n == 0) return;
  const auto rows = static_cast<unsigned>((entries + detail::rows_of_block - 1) / detail::rows_of_block);
  const dim3 grid{rows, static_cast<unsigned>((width + block_size - 1) / block_size)};
  launch(on, {grid, block_size}, detail::embedding_gradient<T>, dy, at, n, gradient, width, entries);
}

}  // namespace comp::cuda
