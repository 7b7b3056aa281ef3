// SPDX-License-Identifier: Apache-2.0
// What stands in for a GPU and its driver: streams whose work runs only when somebody waits for it, so that a missing
// wait shows as old data; memory with a limit; and faults to order, as a test of error handling needs them.
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "global_memory.hpp"

/// The values are CUDA's.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
};

struct cudaDeviceProp {
  char name[256] = "stand-in";
  std::size_t totalGlobalMem = std::size_t{1} << 30;
  int major = 9, minor = 0, multiProcessorCount = 2;
};

/// A stream: work in order, of which the first `done` pieces have run.
struct simt_stream {
  std::deque<std::function<void()>> work;
  std::uint64_t given = 0, done = 0;
  bool waits_for_default = false;
  int gpu = 0;
};
struct simt_event {
  simt_stream* on = nullptr;  // null: never recorded
  std::uint64_t at = 0;
  std::chrono::steady_clock::time_point passed;
  int gpu = 0;
};
struct simt_pool {
  std::multiset<std::size_t> kept;  // sizes of blocks that were freed and not given back
};

namespace simt {

struct gpu {
  int count = 1, current = 0;
  bool has_driver = true, has_pools = true;
  cudaDeviceProp properties;
  // Faults to order; 1 is the next one, 0 none.
  int fail_allocation = 0, fail_launch = 0, lose_device = 0;  // of allocations, of launches, of pieces of work run
  int fail_library = 0;                                       // of calls of libraries

  std::uint64_t launches = 0;  // of kernels, since the start

  cudaError_t last = cudaSuccess, lost = cudaSuccess;
  std::exception_ptr later;  // thrown by work that nobody waited for
  std::size_t used = 0;      // bytes, those kept by pools included
  simt_stream standard;
  std::set<std::unique_ptr<simt_stream>> streams;
  std::set<std::unique_ptr<simt_event>> events;
  std::set<std::unique_ptr<simt_pool>> pools;
  struct owned {
    std::size_t bytes;
    simt_pool* pool;
  };
  std::map<void*, owned> memory;
  std::map<const unsigned char*, std::size_t> pinned;

  /// A new device, as at the start of a process. Throws: fault where memory is still in use.
  void reset() {
    const bool leaks = !memory.empty() || !pinned.empty() || !streams.empty() || !events.empty() || !pools.empty();
    for (const auto& [p, of] : memory) memory_map::common().free(p);
    *this = gpu{};
    if (leaks) throw fault{"memory, streams, events or pools of the device were not given back"};
  }
  cudaError_t report(cudaError_t code) {
    if (code != cudaSuccess && code != cudaErrorNotReady) last = code;
    return code;
  }
  void run_until(simt_stream& s, std::uint64_t end) {
    while (s.done < end && !s.work.empty()) {
      const auto piece = std::move(s.work.front());
      s.work.pop_front();
      ++s.done;
      if (lose_device > 0 && --lose_device == 0) lost = cudaErrorIllegalAddress;
      if (lost == cudaSuccess) piece();
    }
  }
  void run(simt_stream& s) { run_until(s, s.given); }
  void run_all() {
    for (const auto& s : streams) run(*s);
  }
  /// The default stream waits for those that wait for it, and its work is done at once.
  void give(simt_stream* on, std::function<void()> piece) {
    simt_stream& s = on ? *on : standard;
    s.work.push_back(std::move(piece));
    ++s.given;
    if (on) return;
    for (const auto& other : streams) {
      if (other->waits_for_default) run(*other);
    }
    run(s);
  }
};
inline gpu device;

template <class T>
bool known(const std::set<std::unique_ptr<T>>& all, const T* one) {
  for (const auto& p : all) {
    if (p.get() == one) return true;
  }
  return false;
}
template <class T>
void forget(std::set<std::unique_ptr<T>>& all, const T* one) {
  std::erase_if(all, [=](const auto& p) { return p.get() == one; });
}

/// What every call of the runtime does first: a lost device stays lost, and a broken kernel is reported to somebody.
/// Returns: what `call` returns, which is remembered as the last error.
template <class F>
cudaError_t runtime_call(F call) {
  if (device.later) std::rethrow_exception(std::exchange(device.later, nullptr));
  if (!device.has_driver) return device.report(cudaErrorInsufficientDriver);
  if (device.lost != cudaSuccess) return device.lost;
  const cudaError_t code = call();
  return device.report(device.lost != cudaSuccess ? device.lost : code);
}

/// What every call of a library's stand-in does first. `failed` is the library's status for an internal error.
/// Returns: what `call` returns; `failed` where that was ordered or the device is lost, and nothing is done then.
template <class Status, class F>
Status library_call(Status failed, F call) {
  if (device.later) std::rethrow_exception(std::exchange(device.later, nullptr));
  if (device.fail_library > 0 && --device.fail_library == 0) return failed;
  if (!device.has_driver || device.lost != cudaSuccess) return failed;
  return call();
}

}  // namespace simt
