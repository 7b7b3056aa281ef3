// SPDX-License-Identifier: Apache-2.0
#include "bytes.cuh"

namespace comp::cuda {

void values_of_bytes(stream on, const std::uint8_t* from, const float* of_bytes, float* to, index rows, index channels,
                     index width) {
  if (rows == 0 || width == 0) return;
  const bool packed = width % 4 == 0 && fits<4>(from) && fits<4>(to);
  const index wide_blocks = (width + 4 * block_size - 1) / (4 * block_size), wanted = 4096 / rows + 1;
  const dim3 blocks{static_cast<unsigned>(rows < 4096 ? rows : 4096),
                    static_cast<unsigned>(wanted < wide_blocks ? wanted : wide_blocks)};
  launch(on, {blocks, block_size}, packed ? detail::bytes_looked_up<4> : detail::bytes_looked_up<1>, from, of_bytes, to,
         rows, channels, width);
}

}  // namespace comp::cuda
