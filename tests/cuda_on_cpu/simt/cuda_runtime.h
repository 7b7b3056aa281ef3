// SPDX-License-Identifier: Apache-2.0
// Stands in for CUDA's header of this name: first on the include path, it makes g++ read a .cuh and run it on the CPU.
#pragma once

#define COMP_SIMT 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

#include "intrinsics.hpp"

using cudaStream_t = struct simt_stream*;

namespace simt {

/// What kernel<<<grid, block, shared, stream>>>(args...) does, at once and on this thread.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, const place& at,
            const Arguments&... arguments) {
  const auto bound = [=](const Parameters&... p) { run_grid(grid, block, shared_bytes, at, [&] { kernel(p...); }); };
  bound(static_cast<Parameters>(arguments)...);
  memory_map::common().check_guards();
}

}  // namespace simt
