// SPDX-License-Identifier: Apache-2.0
// The versions of what a program for the GPU runs on, for the record of ./run gpu-check: those that were loaded, which
// may be others than those of the headers; of the front end, which is headers alone, the one that was found beside
// them.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <fmt/format.h>
#if __has_include(<cudnn_frontend_version.h>)
#include <cudnn_frontend_version.h>
#endif

#include <cstddef>
#include <string>

namespace comp::cuda::bench {

inline std::string versions() {
  const auto dotted = [](std::size_t v) { return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100); };
  const auto of_cuda = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
#ifdef CUDNN_FRONTEND_VERSION
  const std::string front_end = dotted(CUDNN_FRONTEND_VERSION);
#else
  const std::string front_end = "none";
#endif
  return fmt::format("cuDNN {}, cuBLASLt {}, cuDNN front end {}, CUDA runtime {}, driver's CUDA {}",
                     dotted(cudnnGetVersion()), dotted(cublasLtGetVersion()), front_end, of_cuda(runtime),
                     of_cuda(driver));
}

}  // namespace comp::cuda::bench
