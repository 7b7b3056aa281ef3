// SPDX-License-Identifier: Apache-2.0
// Sums over all elements, and sums over rows (the gradient of a bias), in a fixed order, so that they have the same
// bits in each run. Each takes two launches: the first one leaves the sums of blocks in scratch memory, the second adds
// them.
// A thread and a block add in FP32; the blocks of a sum over all elements are added in FP64.
#pragma once

#include "support/lanes.cuh"
#include "support/packs.cuh"

namespace comp::cuda {

namespace detail {

/// Sums what f.at<N>(i, part) adds to a thread's part for the elements i to i + N.
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
/// *to = factor * the sum of the partial sums, or the square root of that. One block does it.
template <class Total>
__global__ void __launch_bounds__(block_size)
    sum_of_partials(pointer<const float> partial, index n, Total factor, bool root, pointer<Total> to) {
  __shared__ shared_array<Total, 32> slots;
  Total part = 0;
  for (index i = threadIdx.x; i < n; i += block_size) part += static_cast<Total>(partial[i]);
  const Total whole = combine_block(part, Total{0}, slots, sum_of{}) * factor;
  if (threadIdx.x == 0) *to = root ? sqrt(whole) : whole;
}

/// Calls f(i) for every `step`th i from `first` on, in order. It is unrolled by eight, so that eight loads run at once.
template <class F>
__device__ __forceinline__ void strided(index first, index last, index step, F f) {
  index i = first;
  for (; i + 7 * step < last; i += 8 * step) {
#pragma unroll
    for (int j = 0; j < 8; ++j) f(i + j * step);
  }
  for (; i < last; i += step) f(i);
}
/// Returns: the sum over y of a block of (32, Rows) threads, in the order of y, to the threads whose y is 0.
template <unsigned Rows>
__device__ __forceinline__ float total_of_column(float part, shared_array<float, Rows * 33>& slots) {
  __syncthreads();  // other threads may still read the slots of the last call
  slots[threadIdx.y * 33 + threadIdx.x] = part;
  __syncthreads();
  if (threadIdx.y != 0) return 0;
  float whole = part;
#pragma unroll
  for (unsigned y = 1; y < Rows; ++y) whole += slots[y * 33 + threadIdx.x];
  return whole;
}

/// Writes partial[chunk][term][column]. A block sums one chunk of rows for 32 columns, 8 rows at a time.
template <int Terms, class F>
__global__ void __launch_bounds__(block_size)
    sum_columns(F f, index rows, index width, index of_chunk, pointer<float> partial) {
  __shared__ shared_array<float, 8 * 33> slots;
  const index column = static_cast<index>(blockIdx.x) * 32 + threadIdx.x, first = blockIdx.y * of_chunk;
  const index last = first + of_chunk < rows ? first + of_chunk : rows;
  float part[Terms] = {};
  if (column < width) strided(first + threadIdx.y, last, 8, [&](index r) { f.add(r, column, part); });
#pragma unroll
  for (int t = 0; t < Terms; ++t) {
    const float whole = total_of_column<8>(part[t], slots);
    if (threadIdx.y == 0 && column < width) partial[(blockIdx.y * Terms + t) * width + column] = whole;
  }
}
inline constexpr unsigned chunk_rows = 32;  // how many chunks a block of sum_chunks adds at a time
/// Writes the sum over chunks for each term and column, or adds it. A block makes 32 sums, 32 chunks at a time.
template <int Terms>
__global__ void __launch_bounds__(32 * chunk_rows) sum_chunks(pointer<const float> partial, index chunks, index width,
                                                              pointer<float> first, pointer<float> second, bool adds) {
  __shared__ shared_array<float, chunk_rows * 33> slots;
  const index i = static_cast<index>(blockIdx.x) * 32 + threadIdx.x, all = width * Terms;
  float part = 0;
  if (i < all) strided(threadIdx.y, chunks, chunk_rows, [&](index c) { part += partial[c * all + i]; });
  const float whole = total_of_column<chunk_rows>(part, slots);
  if (threadIdx.y != 0 || i >= all) return;
  const pointer<float> to = i < width ? first + i : second + (i - width);
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

/// *to = factor * the sum of f's terms, or the square root of that for `root`; 0 for n = 0. scratch: most_partials
/// floats.
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

/// Writes the sums over rows to first, and to second for two terms, or adds them.
template <int Terms, class F>
void column_totals(stream on, index rows, index width, const F& f, float* first, float* second, bool adds,
                   float* scratch) {
  if (width == 0) return;
  const index chunks = column_chunks(rows);
  const dim3 grid{static_cast<unsigned>((width + 31) / 32), static_cast<unsigned>(chunks)};
  launch(on, {grid, dim3{32, 8}}, detail::sum_columns<Terms, F>, f, rows, width, rows_of_chunk(rows), scratch);
  const dim3 blocks{static_cast<unsigned>((width * Terms + 31) / 32)};
  launch(on, {blocks, dim3{32, detail::chunk_rows}}, detail::sum_chunks<Terms>, scratch, chunks, width, first, second,
         adds);
}
template <class T>
void column_sums(stream on, const T* x, float* to, index rows, index width, bool adds, float* scratch) {
  column_totals<1>(on, rows, width, detail::column_terms<T>{x, width}, to, nullptr, adds, scratch);
}

}  // namespace comp::cuda
