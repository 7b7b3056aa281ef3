// SPDX-License-Identifier: Apache-2.0
// Turns the error codes of CUDA and of its libraries into exceptions that a search can tell apart: the plan does not
// fit into memory (comp::out_of_memory), this device cannot do it (unsupported), the process has lost the device
// (device_lost), anything else (cuda_error, library_error).
#pragma once

#include <cuda_runtime.h>

#include <comp/core/error.hpp>
#include <cstdint>
#include <source_location>
#include <string_view>

namespace comp::cuda {

/// A call of the runtime failed for a reason that has no type of its own here.
struct cuda_error : error {
  cudaError_t code;
  cuda_error(cudaError_t c, const std::string& text) : error{text}, code{c} {}
};
/// The operation exists, but not on this device or in this size. Another plan may run.
struct unsupported : error {
  using error::error;
};
/// From here on every call of this process fails: CUDA's context cannot be repaired.
struct device_lost : cuda_error {
  using cuda_error::cuda_error;
};
/// A library refused or failed; `status` is the library's own.
struct library_error : error {
  int status;
  library_error(int s, const std::string& text) : error{text}, status{s} {}
};

/// True for the errors after which, by CUDA's documentation, the process must be started again.
constexpr bool loses_device(cudaError_t code) {
  switch (static_cast<int>(code)) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226:  // cudaErrorContained, a number because headers before CUDA 12.8 lack the name
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721:  // cudaErrorTensorMemoryLeak, for the same reason
    case cudaErrorMpsClientTerminated:
      return true;
    default:
      return false;
  }
}
/// True for sizes that do not fit, for what the device cannot do, and for code that was built for other GPUs or by a
/// toolkit that is too new for the driver.
constexpr bool is_unsupported(cudaError_t code) {
  return code == cudaErrorNotSupported || code == cudaErrorNoKernelImageForDevice ||
         code == cudaErrorInvalidDeviceFunction || code == cudaErrorUnsupportedPtxVersion ||
         code == cudaErrorInvalidConfiguration || code == cudaErrorLaunchOutOfResources;
}

/// Does nothing for cudaSuccess.
/// Throws: the exception of the code. Its text has what the caller was `doing`, CUDA's words and the source line.
inline void check(cudaError_t code, std::string_view doing, std::source_location at = std::source_location::current()) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // otherwise the next check would report this error again
  const auto text = [&](std::string_view advice) {
    return fmt::format("{} failed at {}:{} (CUDA says {}: {}): {}", doing, at.file_name(), at.line(),
                       cudaGetErrorName(code), cudaGetErrorString(code), advice);
  };
  if (code == cudaErrorMemoryAllocation) throw out_of_memory{text("use a smaller batch or a plan that keeps less")};
  if (loses_device(code)) throw device_lost{code, text("start the process again; what was saved is not touched")};
  if (is_unsupported(code)) throw unsupported{text("use another precision or size, or build for this device")};
  throw cuda_error{code, text("look up the code in CUDA's documentation")};
}

/// What a library's status means. The libraries have different codes for the same four cases.
enum class verdict : std::uint8_t { fine, unsupported, no_memory, failed };
/// The status that a call of a library returned.
struct library_status {
  const char* library;  // "cuBLASLt"
  const char* name;     // "CUBLAS_STATUS_NOT_SUPPORTED"
  int value;
  cuda::verdict verdict;
};

/// Returns: the error of the current device; cudaSuccess if it is only busy. The device must be asked because the
/// libraries have runtimes of their own, whose errors cudaGetLastError() does not know. The question breaks a capture
/// of this thread, but so has the failure that leads to it.
inline cudaError_t state_of_device() {
  const cudaError_t last = cudaGetLastError(), now = loses_device(last) ? last : cudaStreamQuery(nullptr);
  (void)cudaGetLastError();
  return now == cudaErrorNotReady ? cudaSuccess : now;
}

/// Does nothing if the call was fine.
/// Throws: the exception of the status; device_lost if the library failed because the device is lost.
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
