// SPDX-License-Identifier: Apache-2.0
// Looks up the value of each byte in its channel's table: batches of images are copied to the device as bytes.
#pragma once

#include "support/packs.cuh"

namespace comp::cuda {

namespace detail {

/// A row is one channel of one image. A few blocks share it.
template <int N>
__global__ void __launch_bounds__(block_size)
    bytes_looked_up(pointer<const std::uint8_t> from, pointer<const float> of_bytes, pointer<float> to, index rows,
                    index channels, index width) {
  for (index row = blockIdx.x; row < rows; row += gridDim.x) {
    const pointer<const float> table = of_bytes + row % channels * 256;
    const index first = (static_cast<index>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
    for (index i = first; i < width; i += static_cast<index>(gridDim.y) * blockDim.x * N) {
      const pack<std::uint8_t, N> bytes = load_pack<N, std::uint8_t>(from + row * width + i);
      pack<float, N> values;
#pragma unroll
      for (int j = 0; j < N; ++j) values.v[j] = table[bytes.v[j]];
      store_pack<N, float>(to + row * width + i, values);
    }
  }
}

}  // namespace detail

}  // namespace comp::cuda
