// SPDX-License-Identifier: Apache-2.0
// The threads that work together on one row: a warp, a block, or a quarter of a warp. A warp and a block can also
// combine a value over their threads, all of which get the result.
#pragma once

#include "launch.cuh"

namespace comp::cuda {

struct sum_of {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct largest_of {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class T, class F>
__device__ __forceinline__ T combine_warp(T v, F f) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) v = f(v, __shfl_xor_sync(all_lanes, v, bits));
  return v;
}
/// Combines v over the block. Returns: the same bits to every thread, and in every run.
/// Requires: all threads of the block call it, and the block has whole warps.
template <class T, class F>
__device__ __forceinline__ T combine_block(T v, T neutral, shared_array<T, 32>& slots, F f) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = combine_warp(v, f);
  __syncthreads();  // other warps may still read the slots of the last call
  if (lane == 0) slots[warp] = v;
  __syncthreads();
  v = lane < blockDim.x / 32 ? static_cast<T>(slots[lane]) : neutral;
  return combine_warp(v, f);
}

inline constexpr float infinity = __builtin_huge_valf();

struct warp_lanes {
  static constexpr unsigned rows_per_block = block_size / 32;
  shared_array<float, 32>& unused;
  __device__ index rank() const { return threadIdx.x % 32; }
  static constexpr index count = 32;
  __device__ index row() const { return static_cast<index>(blockIdx.x) * rows_per_block + threadIdx.x / 32; }
  __device__ float sum(float v) const { return combine_warp(v, sum_of{}); }
  __device__ float largest(float v) const { return combine_warp(v, largest_of{}); }
};
/// A quarter of a warp, for rows so short that most of a warp would be idle. It cannot combine values.
struct quarter_lanes {
  static constexpr unsigned rows_per_block = block_size / 8;
  shared_array<float, 32>& unused;
  __device__ index rank() const { return threadIdx.x % 8; }
  static constexpr index count = 8;
  __device__ index row() const { return static_cast<index>(blockIdx.x) * rows_per_block + threadIdx.x / 8; }
};
struct block_lanes {
  static constexpr unsigned rows_per_block = 1;
  shared_array<float, 32>& slots;
  __device__ index rank() const { return threadIdx.x; }
  static constexpr index count = block_size;
  __device__ index row() const { return blockIdx.x; }
  __device__ float sum(float v) const { return combine_block(v, 0.0F, slots, sum_of{}); }
  __device__ float largest(float v) const { return combine_block(v, -infinity, slots, largest_of{}); }
};

}  // namespace comp::cuda
