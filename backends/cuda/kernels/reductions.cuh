// SPDX-License-Identifier: Apache-2.0
// Sums over all elements and over rows (bias gradients), in a fixed order: the same bits every time.
// FP32 within a thread and a block, FP64 over blocks. Two launches, with the blocks' sums in scratch memory between.
#pragma once

#include "support/lanes.cuh"
#include "support/packs.cuh"

namespace comp::cuda {

namespace detail {

/// f.at<N>(i, part) adds elements i to i + N to a thread's sum.
template <int N, class F>
__global__ void __launch_bounds__(block_size) sum_by_blocks(F f, index n, index head, pointer<float> partial) {
  __shared__ shared_array<float, 32> slots;
  const index step = static_cast<index>(gridDim.x) * blockDim.x;
  const index me = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x;
  const index packs = (n - head) / N, tail = head + packs * N;
  float part = 0;
  for (index p = me; p < packs; p += step) f.template at<N>(head + p * N, part);
  if (N > 1 && me < head) f.template at<1>(me, part);
  if (N > 1 && me < n - tail) f.template at<1>(tail + me, part);
  const float whole = combine_block(part, 0.0F, slots, sum_of{});
  if (threadIdx.x == 0) partial[blockIdx.x] = whole;
}
/// One block. *to = factor * the sum of the partials (its square root, where wanted).
template <class Total>
__global__ void __launch_bounds__(block_size)
    sum_of_partials(pointer<const float> partial, index n, Total factor, bool root, pointer<Total> to) {
  __shared__ shared_array<Total, 32> slots;
  Total part = 0;
  for (index i = threadIdx.x; i < n; i += block_size) part += static_cast<Total>(partial[i]);
  const Total whole = combine_block(part, Total{0}, slots, sum_of{}) * factor;
  if (threadIdx.x == 0) *to = root ? sqrt(whole) : whole;
}

template <class T>
struct plain_terms {
  pointer<const T> x;
  template <int N>
  __device__ __forceinline__ void at(index i, float& part) const {
    float v[N];
    load_all<N, T>(x + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) part += v[j];
  }
};

/// Block (32 columns, 8 rows at a time) of one chunk of rows: partial[chunk][term][column].
template <int Terms, class F>
__global__ void __launch_bounds__(block_size) sum_columns(F f, index rows, index width, pointer<float> partial) {
  __shared__ shared_array<float, 8 * 33> slots;
  const index column = static_cast<index>(blockIdx.x) * 32 + threadIdx.x, first = blockIdx.y * rows_per_chunk;
  const index last = first + rows_per_chunk < rows ? first + rows_per_chunk : rows;
  float part[Terms] = {};
  for (index r = first + threadIdx.y; r < last && column < width; r += 8) f.add(r, column, part);
#pragma unroll
  for (int t = 0; t < Terms; ++t) {
    __syncthreads();
    slots[threadIdx.y * 33 + threadIdx.x] = part[t];
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) continue;
    float whole = part[t];
#pragma unroll
    for (unsigned y = 1; y < 8; ++y) whole += slots[y * 33 + threadIdx.x];
    partial[(blockIdx.y * Terms + t) * width + column] = whole;
  }
}
/// to[term][column] (+)= the sum over chunks.
template <int Terms>
__global__ void __launch_bounds__(block_size) sum_chunks(pointer<const float> partial, index chunks, index width,
                                                         pointer<float> first, pointer<float> second, bool adds) {
  const index i = static_cast<index>(blockIdx.x) * block_size + threadIdx.x;
  if (i >= width * Terms) return;
  const index term = i / width, column = i % width;
  float whole = 0;
  for (index c = 0; c < chunks; ++c) whole += partial[(c * Terms + term) * width + column];
  const pointer<float> to = (term == 0 ? first : second) + column;
  *to = adds ? *to + whole : whole;
}

template <class T>
struct column_terms {
  pointer<const T> x;
  index width;
  __device__ __forceinline__ void add(index r, index column, float (&part)[1]) const {
    part[0] += widen<T>(x[r * width + column]);
  }
};

}  // namespace detail

/// *to = factor * the sum of f's terms. scratch: most_partials floats. Gives 0 for n = 0.
template <int N, class F>
void total(stream on, index n, index head, const F& f, double factor, double* to, float* scratch, bool root = false) {
  const index threads = (n + 8 * N - 1) / (8 * N), wanted = (threads + block_size - 1) / block_size;
  const index blocks = wanted < 1 ? 1 : wanted < most_partials ? wanted : most_partials;
  const dim3 grid{static_cast<unsigned>(blocks)};
  if (head < 0) {
    launch(on, {grid, block_size}, detail::sum_by_blocks<1, F>, f, n, index{0}, scratch);
  } else {
    launch(on, {grid, block_size}, detail::sum_by_blocks<N, F>, f, n, head < n ? head : n, scratch);
  }
  launch(on, {1, block_size}, detail::sum_of_partials<double>, scratch, blocks, factor, root, to);
}
template <class T>
void sum(stream on, const T* x, index n, double* to, float* scratch) {
  constexpr int N = wide<T>;
  total<N>(on, n, common_head<N>(x), detail::plain_terms<T>{x}, 1, to, scratch);
}

/// first (and second, for two terms) (+)= the sums over rows. Throws: error for more than 2^24 rows.
template <int Terms, class F>
void column_totals(stream on, index rows, index width, const F& f, float* first, float* second, bool adds,
                   float* scratch) {
  const index chunks = (rows + rows_per_chunk - 1) / rows_per_chunk;
  require<error>(chunks <= 65535, "a sum over {} rows (a grid has 65535 chunks of {} at most): split it", rows,
                 rows_per_chunk);
  if (width == 0) return;
  const dim3 grid{static_cast<unsigned>((width + 31) / 32), static_cast<unsigned>(chunks)};
  launch(on, {grid, dim3{32, 8}}, detail::sum_columns<Terms, F>, f, rows, width, scratch);
  const dim3 blocks{static_cast<unsigned>((width * Terms + block_size - 1) / block_size)};
  launch(on, {blocks, block_size}, detail::sum_chunks<Terms>, scratch, chunks, width, first, second, adds);
}
template <class T>
void column_sums(stream on, const T* x, float* to, index rows, index width, bool adds, float* scratch) {
  column_totals<1>(on, rows, width, detail::column_terms<T>{x, width}, to, nullptr, adds, scratch);
}

}  // namespace comp::cuda
