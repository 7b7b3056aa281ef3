// SPDX-License-Identifier: Apache-2.0
// CUDA's error codes as exceptions that a search can tell apart: no memory for this plan (comp::out_of_memory), this
// device cannot do it (unsupported), the device is gone for this process (device_lost), anything else (cuda_error).
#pragma once

#include <cuda_runtime.h>

#include <comp/core/error.hpp>
#include <source_location>
#include <string_view>

namespace comp::cuda {

struct cuda_error : error {
  cudaError_t code;
  cuda_error(cudaError_t c, const std::string& text) : error{text}, code{c} {}
};
/// What was asked for exists, but not on this device or in this size. Another plan may run.
struct unsupported : cuda_error {
  using cuda_error::cuda_error;
};
/// Every later call fails too, until the process ends.
struct device_lost : cuda_error {
  using cuda_error::cuda_error;
};

/// True for the errors after which CUDA's documentation says that the process has to be started again.
constexpr bool loses_device(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorDevicesUnavailable:
      return true;
    default:
      return false;
  }
}
constexpr bool is_unsupported(cudaError_t code) {
  return code == cudaErrorNotSupported || code == cudaErrorNoKernelImageForDevice ||
         code == cudaErrorInvalidConfiguration || code == cudaErrorLaunchOutOfResources;
}

/// Throws: what the code stands for, with what was being `doing`, CUDA's words and the place; nothing for cudaSuccess.
inline void check(cudaError_t code, std::string_view doing, std::source_location at = std::source_location::current()) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // or the next check reports this one again
  const auto text = [&](std::string_view advice) {
    return fmt::format("{} failed at {}:{} (CUDA says {}: {}): {}", doing, at.file_name(), at.line(),
                       cudaGetErrorName(code), cudaGetErrorString(code), advice);
  };
  if (code == cudaErrorMemoryAllocation) throw out_of_memory{text("use a smaller batch or a plan that keeps less")};
  if (loses_device(code)) throw device_lost{code, text("start the process again; what was saved is not touched")};
  if (is_unsupported(code)) throw unsupported{code, text("use another precision or size, or build for this device")};
  throw cuda_error{code, text("look up the code in CUDA's documentation")};
}

}  // namespace comp::cuda
