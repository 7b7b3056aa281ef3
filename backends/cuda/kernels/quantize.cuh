// SPDX-License-Identifier: Apache-2.0
// Makes FP8 operands: finds the largest magnitude of a tensor, and scales the tensor so that it fills the format. One
// pass writes the operand as it is, transposed, or both. The factor stays on the device, so that nothing waits for it.
// Sizes are padded with zeros to multiples of 16, which FP8 products need; take_columns() takes the columns that count
// out of such a product.
#pragma once

#include <comp_native/math/fp8.hpp>

#include "support/lanes.cuh"
#include "support/rows.cuh"

namespace comp::cuda {

namespace detail {

/// Returns the larger number, and NaN if there is one: a tensor with NaN must not look small.
struct larger_of {
  __device__ float operator()(float a, float b) const { return a >= b || a != a ? a : b; }
};

template <int N, class T>
__global__ void __launch_bounds__(block_size)
    magnitudes_by_blocks(pointer<const T> x, index n, index head, pointer<float> partial) {
  __shared__ shared_array<float, 32> slots;
  const index step = static_cast<index>(gridDim.x) * blockDim.x;
  const index me = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x;
  const index packs = (n - head) / N, tail = head + packs * N;
  float part = 0;
  for (index p = me; p < packs; p += step) {
    float v[N];
    load_all<N, T>(x + (head + p * N), v);
#pragma unroll
    for (int j = 0; j < N; ++j) part = larger_of{}(part, fabsf(v[j]));
  }
  if (N > 1 && me < head) part = larger_of{}(part, fabsf(widen<T>(x[me])));
  if (N > 1 && me < n - tail) part = larger_of{}(part, fabsf(widen<T>(x[tail + me])));
  const float whole = combine_block(part, 0.0F, slots, larger_of{});
  if (threadIdx.x == 0) partial[blockIdx.x] = whole;
}

template <class T>
struct quantize_job {
  pointer<const T> from;
  index rows, columns;
  pointer<const float> partial;
  index partials;
  pointer<float> inverse;
  pointer<std::uint8_t> by_rows, by_columns;
  index padded_rows, padded_columns;
  unsigned tiles_across;  // of the type of blockIdx.x, so that the division has 32 bits
};

/// Returns: the factor that makes `largest` the largest value of F; 1 if that is 0 or not finite. It is bounded, so
/// that it and its inverse are normal numbers.
template <class F>
__device__ __forceinline__ float factor_for(float largest) {
  if (!(largest > 0) || largest == infinity) return 1;
  const float wanted = native::math::fp8_format<F>::largest_value / largest;
  return wanted < 0x1p100F ? wanted : 0x1p100F;
}

inline constexpr index square = 64, square_stride = 68;  // [bytes]; 68 puts neighbours of a column in different banks

/// Loads 8 neighbours; those outside of the tensor are 0.
template <bool Packed, class T>
__device__ __forceinline__ void load_eight(const quantize_job<T>& job, index row, index column, float (&v)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = 0;
  if (row >= job.rows) return;
  const pointer<const T> from = job.from + (row * job.columns + column);
  if constexpr (Packed) {
    if (column < job.columns) load_all<8, T>(from, v);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (column + j < job.columns) v[j] = widen<T>(from[j]);
    }
  }
}

/// A block quantises a square of 64 by 64. A thread writes eight neighbours along rows, and sixteen along columns of
/// the transpose, by one instruction each.
template <class F, bool Packed, class T>
__global__ void __launch_bounds__(block_size) quantize_squares(const quantize_job<T> job) {
  __shared__ shared_array<float, 32> slots;
  __shared__ shared_array<std::uint8_t, square * square_stride> codes;
  float part = 0;
  for (index i = threadIdx.x; i < job.partials; i += block_size) part = larger_of{}(part, job.partial[i]);
  const float factor = factor_for<F>(combine_block(part, 0.0F, slots, larger_of{}));
  if (blockIdx.x == 0 && threadIdx.x == 0) *job.inverse = 1 / factor;
  const index top = blockIdx.x / job.tiles_across * square, left = blockIdx.x % job.tiles_across * square;
  for (index p = threadIdx.x; p < square * (square / 8); p += block_size) {
    const index down = p / 8, across = p % 8 * 8, row = top + down, column = left + across;
    float v[8];
    load_eight<Packed>(job, row, column, v);
    pack<std::uint8_t, 8> eight;
#pragma unroll
    for (int j = 0; j < 8; ++j) eight.v[j] = narrow<F>(v[j] * factor).bits;
    if (job.by_rows && row < job.padded_rows && column < job.padded_columns)
      store_pack<8, std::uint8_t>(job.by_rows + (row * job.padded_columns + column), eight);
    if (!job.by_columns) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) codes[static_cast<std::size_t>(down * square_stride + across + j)] = eight.v[j];
  }
  if (!job.by_columns) return;
  __syncthreads();
  const index across = threadIdx.x % square, down = threadIdx.x / square * 16;
  if (left + across >= job.padded_columns || top + down >= job.padded_rows) return;
  pack<std::uint8_t, 16> sixteen;
#pragma unroll
  for (int j = 0; j < 16; ++j) sixteen.v[j] = codes[static_cast<std::size_t>((down + j) * square_stride + across)];
  store_pack<16, std::uint8_t>(job.by_columns + ((left + across) * job.padded_rows + top + down), sixteen);
}

template <class To>
struct taken_columns {
  static constexpr bool one_pass = true;
  pointer<const float> from;
  pointer<To> to;
  index leading, width;
  pointer<const float> bias;
  bool relu, adds;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    for (index at = lanes.rank() * N; at < width; at += Lanes::count * N) {
      float v[N], other[N];
      load_all<N, float>(from + (r * leading + at), v);
      if (bias) {
        load_all<N, float>(bias + at, other);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] += other[j];
      }
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = relu && v[j] < 0 ? 0 : v[j];
      if (adds) {
        load_all<N, To>(to + (r * width + at), other);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] += other[j];
      }
      store_all<N, To>(to + (r * width + at), v);
    }
  }
};

}  // namespace detail

template <class T>
index largest_magnitudes(stream on, const T* x, index n, float* partial) {
  constexpr int N = wide<T>;
  const index threads = (n + 8 * N - 1) / (8 * N), wanted = (threads + block_size - 1) / block_size;
  const index blocks = wanted < 1 ? 1 : wanted < most_partials ? wanted : most_partials;
  const launch_shape shape{dim3{static_cast<unsigned>(blocks)}, block_size};
  const index head = common_head<N>(x);
  if (head < 0) {
    launch(on, shape, detail::magnitudes_by_blocks<1, T>, x, n, index{0}, partial);
  } else {
    launch(on, shape, detail::magnitudes_by_blocks<N, T>, x, n, head < n ? head : n, partial);
  }
  return blocks;
}
template <class F, class T>
void quantize(stream on, const T* x, index rows, index columns, const float* partial, index partials, float* inverse,
              F* by_rows, F* by_columns) {
  const index across = (columns + detail::square - 1) / detail::square;
  const index squares = across * ((rows + detail::square - 1) / detail::square);
  require<error>(squares < index{1} << 31,
                 "quantising ({},{}) in one launch (a grid has 2^31 blocks at most): split it", rows, columns);
  const detail::quantize_job<T> job{x,
                                    rows,
                                    columns,
                                    partial,
                                    partials,
                                    inverse,
                                    reinterpret_cast<std::uint8_t*>(by_rows),
                                    reinterpret_cast<std::uint8_t*>(by_columns),
                                    fp8_padded(rows),
                                    fp8_padded(columns),
                                    static_cast<unsigned>(across)};
  const launch_shape shape{dim3{static_cast<unsigned>(squares)}, block_size};
  if (columns % 8 == 0 && fits<8>(x)) return launch(on, shape, detail::quantize_squares<F, true, T>, job);
  launch(on, shape, detail::quantize_squares<F, false, T>, job);
}
template <class To>
void take_columns(stream on, const float* from, index leading, To* to, index rows, index width, const float* bias,
                  bool relu, bool adds) {
  constexpr int N = wide<To>;
  const bool packed = leading % N == 0 && fits<N>(from) && fits<N>(to) && fits<N>(bias);
  for_rows<N>(on, rows, width, packed, detail::taken_columns<To>{from, to, leading, width, bias, relu, adds});
}

}  // namespace comp::cuda
