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
#include "runtime_graphs.hpp"

namespace simt {

/// What kernel<<<grid, block, shared, stream>>>(args...) does: given to the stream, run when somebody waits for it. On
/// the default stream, if no other runs beside it: at once. A launch that fails is told by cudaGetLastError too.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t on,
                   const place& at, const Arguments&... arguments) {
  return runtime_call([&] {
    if (device.fail_launch > 0 && --device.fail_launch == 0) return cudaErrorLaunchOutOfResources;
    if (!known_stream(on) || (on && on->gpu != device.current)) return cudaErrorInvalidResourceHandle;
    if (const auto code = may_give(on); code != cudaSuccess) return code;
    ++device.launches;
    const auto bound = [=](const Parameters&... p) {
      device.give(on, {"a kernel", at}, [=] {
        run_grid(grid, block, shared_bytes, at, [&] { kernel(p...); });
        memory_map::common().check_guards();
      });
    };
    bound(static_cast<Parameters>(arguments)...);
    return cudaSuccess;
  });
}

}  // namespace simt

struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
/// Attributes (clusters and their like) are not here.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* how, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (!how || !kernel || how->numAttrs != 0) return simt::device.report(cudaErrorInvalidValue);
  return simt::launch(kernel, how->gridDim, how->blockDim, how->dynamicSmemBytes, how->stream, simt::place::current(),
                      arguments...);
}
