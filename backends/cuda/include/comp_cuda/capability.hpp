// SPDX-License-Identifier: Apache-2.0
// What a GPU is, which precisions its tensor cores have, and what a user should be warned of before a search.
// Source: the warnings are those of Paddle's AMP guide.
#pragma once

#include <algorithm>
#include <comp/core/hardware.hpp>
#include <iterator>
#include <string>
#include <vector>

#include "errors.hpp"

namespace comp::cuda {

/// What the driver says of one GPU.
struct capability {
  int device = 0;  // its number, as CUDA counts
  std::string name{};
  int major = 0, minor = 0;
  std::int64_t memory_bytes = 0;
  int multiprocessors = 0;
  bool memory_pools = false;  // True if the driver has stream-ordered pools, which memory_pool.hpp needs

  comp::hardware hardware() const {
    return {.name = name, .kind = device_kind::cuda, .compute_capability = 10 * major + minor};
  }
  /// True if the tensor cores compute in p, and for FP32, which runs without them. Of formats below 16 bits this
  /// backend has FP8 with a scale per tensor alone.
  constexpr bool has(precision p) const {
    const int first = (is_scaled(p) && !is_fp8(p)) || p == precision::bf16_fp32 ? 0 : unit_for(p).capability;
    return p == precision::fp32 || (first != 0 && 10 * major + minor >= first);
  }
  std::vector<precision> supported() const {
    std::vector<precision> all;
    std::ranges::copy_if(all_precisions, std::back_inserter(all), [this](precision p) { return has(p); });
    return all;
  }
  /// Returns: one sentence for each precision that this GPU's tensor cores lack.
  std::vector<std::string> warnings() const {
    const auto lacks = [&](const char* what, const char* from, const char* instead) {
      return fmt::format("{} has compute capability {}.{}, and {} need {}: {}", name, major, minor, what, from,
                         instead);
    };
    std::vector<std::string> all;
    if (!has(precision::fp16))
      all.push_back(lacks("tensor cores for FP16", "7.0", "FP16 may save memory but not time"));
    if (!has(precision::bf16)) all.push_back(lacks("BF16 and TF32", "8.0", "use FP16 with loss scaling"));
    if (!has(precision::fp8_e4m3)) all.push_back(lacks("the FP8 formats", "8.9", "they are left out of plans"));
    return all;
  }
};

/// Returns: how many GPUs there are; 0 if there is no driver.
inline int devices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorStubLibrary) {
    (void)cudaGetLastError();
    return 0;
  }
  check(code, "counting GPUs");
  return count;
}

/// Throws: error if the driver is for an earlier CUDA than this program, which then sees no GPU at all.
inline void require_driver_for(int device) {
  int known = 0;  // stays 0 if there is no driver
  (void)cudaDriverGetVersion(&known);
  require<error>(
      known == 0 || known / 1000 >= CUDART_VERSION / 1000,
      "GPU {} asked for (the driver knows CUDA {}.{}, and this program is of CUDA {}): update the driver, or "
      "use the host device",
      device, known / 1000, known % 1000 / 10, CUDART_VERSION / 1000);
}

/// Throws: error for a GPU that is not there. Its text names the alternative.
inline capability probe(int device = 0) {
  const int count = devices();
  if (count == 0) require_driver_for(device);
  require<error>(device >= 0 && device < count,
                 "GPU {} asked for ({} found by the CUDA driver): use one that is there, or the host device", device,
                 count);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "asking what a GPU is");
  int pools = 0;
  check(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device), "asking for memory pools");
  return {device,
          properties.name,
          properties.major,
          properties.minor,
          static_cast<std::int64_t>(properties.totalGlobalMem),
          properties.multiProcessorCount,
          pools != 0};
}

}  // namespace comp::cuda
