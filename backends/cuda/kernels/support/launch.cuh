// SPDX-License-Identifier: Apache-2.0
// What kernels are written in, whether nvcc compiles them or g++ with the SIMT shim of tests/cuda_on_cpu: pointers,
// shared arrays, and the one place that launches. Inert for an empty grid: nothing is launched.
#pragma once

#include <comp_cuda/kernels.hpp>
#include <cstdint>
#include <source_location>
#include <type_traits>

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

/// How many blocks of how many threads, and who asked.
struct launch_shape {
  dim3 grid, block;
  std::size_t shared_bytes;
  std::source_location at;
  launch_shape(dim3 blocks, dim3 threads, std::size_t bytes = 0,
               std::source_location from = std::source_location::current())
      : grid{blocks}, block{threads}, shared_bytes{bytes}, at{from} {}
};

/// kernel<<<...>>>(arguments...). Throws: as check() does where the runtime refuses.
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
/// Enough blocks for n units of one thread each, and not more than keep a large device busy: threads stride on.
inline dim3 blocks_for(index n, index threads = block_size) {
  const index blocks = (n + threads - 1) / threads;
  return dim3{static_cast<unsigned>(blocks < 4096 ? blocks : 4096)};
}

}  // namespace comp::cuda
