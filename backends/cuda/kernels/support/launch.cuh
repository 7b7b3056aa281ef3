// SPDX-License-Identifier: Apache-2.0
// What every kernel needs: pointers, shared arrays, and the one function that launches. With them the same source is
// compiled by nvcc for a GPU and by g++ with the SIMT shim of tests/cuda_on_cpu, whose pointers check each access.
#pragma once

#include <comp_cuda/kernels.hpp>
#include <source_location>

namespace comp::cuda {

inline constexpr unsigned all_lanes = 0xffffffffU;

#ifdef COMP_SIMT
template <class T>
using pointer = simt::pointer<T>;
template <class T, std::size_t N>
using shared_array = simt::shared_array<T, N>;
#else
template <class T>
using pointer = T*;
template <class T, std::size_t N>
struct shared_array {
  T elements[N];
  __device__ T& operator[](std::size_t i) { return elements[i]; }
};
#endif

/// How many blocks of how many threads, and the line that launches them, for messages.
struct launch_shape {
  dim3 grid, block;
  std::size_t shared_bytes;
  std::source_location at;
  launch_shape(dim3 blocks, dim3 threads, std::size_t bytes = 0,
               std::source_location from = std::source_location::current())
      : grid{blocks}, block{threads}, shared_bytes{bytes}, at{from} {}
};

/// Launches kernel<<<...>>>(arguments...); nothing for an empty grid, which CUDA would refuse.
/// Throws: what check() throws if the runtime refuses.
template <class... Parameters, class... Arguments>
void launch(stream on, const launch_shape& shape, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0) return;
#ifdef COMP_SIMT
  simt::launch(kernel, shape.grid, shape.block, shape.shared_bytes, on, shape.at, arguments...);
#else
  kernel<<<shape.grid, shape.block, shape.shared_bytes, on>>>(static_cast<Parameters>(arguments)...);
#endif
  check(cudaGetLastError(), "launching a kernel", shape.at);
}

inline constexpr unsigned block_size = 256;
/// Returns: enough blocks for n units of work, one for each thread, but not more than keep a large GPU busy. Beyond
/// that the threads of a kernel stride on to further units.
inline dim3 blocks_for(index n, index threads = block_size) {
  const index blocks = (n + threads - 1) / threads;
  return dim3{static_cast<unsigned>(blocks < 4096 ? blocks : 4096)};
}

}  // namespace comp::cuda
