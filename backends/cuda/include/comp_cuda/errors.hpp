// SPDX-License-Identifier: Apache-2.0
// Error codes of CUDA and of its libraries as exceptions that a search can tell apart: no memory for this plan
// (comp::out_of_memory), this device cannot do it (unsupported), the device is gone for this process (device_lost),
// anything else (cuda_error, library_error).
#pragma once

#include <cuda_runtime.h>

#include <comp/core/error.hpp>
#include <cstdint>
#include <source_location>
#include <string_view>

namespace comp::cuda {

struct cuda_error : error {
  cudaError_t code;
  cuda_error(cudaError_t c, const std::string& text) : error{text}, code{c} {}
};
/// What was asked for exists, but not on this device or in this size. Another plan may run.
struct unsupported : error {
  using error::error;
};
/// Every later call fails too, until the process ends.
struct device_lost : cuda_error {
  using cuda_error::cuda_error;
};
/// A library refused or failed; `status` is the library's own.
struct library_error : error {
  int status;
  library_error(int s, const std::string& text) : error{text}, status{s} {}
};

/// True for the errors after which CUDA's documentation says that the process has to be started again.
constexpr bool loses_device(cudaError_t code) {
  switch (static_cast<int>(code)) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226:  // cudaErrorContained, which headers have from 12.8 on
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721:  // cudaErrorTensorMemoryLeak, from 12.8 on
    case cudaErrorMpsClientTerminated:
      return true;
    default:
      return false;
  }
}
/// Of sizes, of what a device cannot do, and of code that was built for others or by a toolkit too new for its driver.
constexpr bool is_unsupported(cudaError_t code) {
  return code == cudaErrorNotSupported || code == cudaErrorNoKernelImageForDevice ||
         code == cudaErrorInvalidDeviceFunction || code == cudaErrorUnsupportedPtxVersion ||
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
  if (is_unsupported(code)) throw unsupported{text("use another precision or size, or build for this device")};
  throw cuda_error{code, text("look up the code in CUDA's documentation")};
}

/// What a library's status stands for.
enum class verdict : std::uint8_t { fine, unsupported, no_memory, failed };
struct library_status {
  const char* library;  // "cuBLASLt"
  const char* name;     // "CUBLAS_STATUS_NOT_SUPPORTED"
  int value;
  cuda::verdict verdict;
};

/// What the current device says when it is asked; cudaSuccess where it is busy. Libraries have runtimes of their own,
/// and what went wrong there is no last error here. Breaks a capture of this thread, as does the failure asked about.
inline cudaError_t state_of_device() {
  const cudaError_t last = cudaGetLastError(), now = loses_device(last) ? last : cudaStreamQuery(nullptr);
  (void)cudaGetLastError();
  return now == cudaErrorNotReady ? cudaSuccess : now;
}

/// Throws: what the status stands for, as check() of a CUDA code does; device_lost where that is why the library
/// failed.
inline void check(const library_status& s, std::string_view doing,
                  std::source_location at = std::source_location::current()) {
  if (s.verdict == verdict::fine) return;
  if (s.verdict != verdict::unsupported) {
    const cudaError_t code = state_of_device();
    if (loses_device(code)) check(code, doing, at);
  }
  const auto text = [&](std::string_view advice) {
    return fmt::format("{} failed at {}:{} ({} says {}): {}", doing, at.file_name(), at.line(), s.library, s.name,
                       advice);
  };
  if (s.verdict == verdict::unsupported) throw unsupported{text("use another precision or size")};
  if (s.verdict == verdict::no_memory) throw out_of_memory{text("use a smaller batch or a plan that keeps less")};
  throw library_error{s.value, text("look up the status in the library's documentation")};
}

}  // namespace comp::cuda
