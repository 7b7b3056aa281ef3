// SPDX-License-Identifier: Apache-2.0
// What stands in for a GPU and its driver: streams whose work runs only when somebody waits for it, so that a missing
// wait shows as old data; memory with a limit; and faults to order, as a test of error handling needs them.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "capture_state.hpp"

/// The values are CUDA's.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorUnsupportedPtxVersion = 222,
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
  cudaErrorMpsClientTerminated = 810,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908,
};

struct cudaDeviceProp {
  char name[256] = "stand-in";
  std::size_t totalGlobalMem = std::size_t{1} << 30;
  int major = 9, minor = 0, multiProcessorCount = 2;
};

/// A stream: work in order, of which the first `done` pieces have run.
struct simt_stream {
  std::deque<std::pair<simt::work_point, std::function<void()>>> work;
  simt::work_line order = {};
  std::uint64_t given = 0, done = 0;
  int gpu = 0;
  std::shared_ptr<simt::capture> in = nullptr;  // null: work runs
};
struct simt_event {
  bool timed = true;
  std::shared_ptr<simt_stream> on = nullptr;  // null: never recorded, or recorded in a capture
  std::uint64_t at = 0;
  std::shared_ptr<simt::capture> in = nullptr;  // that it was last recorded in
  simt::line_clock knows = {};                  // what comes before it
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
  int old_driver = 0;  // if has_driver is false: the CUDA of one that is too old; 0: none is installed
  cudaDeviceProp properties;
  // Faults to order; 1 is the next one, 0 none.
  int fail_allocation = 0, fail_launch = 0, lose_device = 0;  // of allocations, of launches, of pieces of work run
  int fail_library = 0;                                       // of calls of libraries
  int allocations_failing = 1;                                // how many in a row: the pool asks twice

  std::shared_ptr<void> of_graphs = std::make_shared<char>();  // held by each launch of a graph that is to run yet

  std::uint64_t launches = 0;  // of kernels, since the start

  cudaError_t last = cudaSuccess, lost = cudaSuccess;
  std::exception_ptr later;  // thrown by work that nobody waited for
  std::chrono::steady_clock::duration
      pretended{};       // how much longer than it did the work so far pretends to have taken
  std::size_t used = 0;  // bytes, those kept by pools included
  simt_stream standard;
  work_line host;                                  // what it has waited for
  std::set<std::shared_ptr<simt_stream>> streams;  // those that were destroyed live on in the events recorded there
  std::set<std::unique_ptr<simt_event>> events;
  std::set<std::unique_ptr<simt_pool>> pools;
  std::set<std::unique_ptr<simt_graph>> graphs;
  std::set<std::unique_ptr<simt_executable>> executables;
  std::size_t graph_bytes = 0;  // of `used`: what backs the memory of graphs; one launch after another shares it
  /// What tests count: kernels, copies and library work given to streams one by one, launches of graphs, and waits of
  /// the host for work that was not done.
  struct work_counts {
    std::uint64_t given = 0, graphs = 0, waits = 0;
    std::size_t workspace = 0;  // the most bytes of scratch memory that a library was given for a call
  } counts;
  struct owned {
    std::size_t bytes;
    simt_pool* pool;
    bool given_back = false;  // to be freed when its stream comes there, which of a lost device is never
  };
  std::map<void*, owned> memory;
  struct pinned_block {
    std::size_t bytes;
    std::shared_ptr<pinned_history> use = std::make_shared<pinned_history>();  // held by copies still to be made
  };
  std::map<const unsigned char*, pinned_block> pinned;

  /// A new device, as at the start of a process. Throws: fault if memory is still in use.
  void reset() {
    const auto owed = [](const auto& one) { return !one.second.given_back; };
    const bool leaks = std::ranges::any_of(memory, owed) || !pinned.empty() || !streams.empty() || !events.empty() ||
                       !pools.empty() || !graphs.empty() || !executables.empty();
    for (const auto& [p, of] : memory) memory_map::common().free(p);
    *this = gpu{};
    if (leaks) throw fault{"memory, streams, events, pools or graphs of the device were not given back"};
  }
  cudaError_t report(cudaError_t code) {
    if (code != cudaSuccess && code != cudaErrorNotReady) last = code;
    return code;
  }
  void run_piece(const work_point& as, const std::function<void()>& piece) {
    if (lose_device > 0 && --lose_device == 0) lost = cudaErrorIllegalAddress;
    if (lost != cudaSuccess) return;
    struct back {
      work_point to = now_runs;
      ~back() { now_runs = to; }
    } const after;
    now_runs = as;
    piece();
  }
  void run_until(simt_stream& s, std::uint64_t end) {
    while (s.done < end && !s.work.empty()) {
      const auto [as, piece] = std::move(s.work.front());
      s.work.pop_front();
      ++s.done;
      run_piece(as, piece);
    }
  }
  /// As run_until, by a call that makes the host wait.
  void wait_until(simt_stream& s, std::uint64_t end) {
    counts.waits += s.done < end;
    run_until(s, end);
  }
  void run(simt_stream& s) { run_until(s, s.given); }
  void run_all() {
    wait_until(standard, standard.given);
    for (const auto& s : streams) wait_until(*s, s->given);
    host.wait_for(standard.order);
    for (const auto& s : streams) host.wait_for(s->order);
  }
  /// The next work of a stream: behind what the host has waited for.
  work_point next_of(simt_stream& s, const work_name& name) {
    s.order.wait_for(*host.knows);
    return s.order.next(name);
  }
  /// No other stream waits for the default one. If there is none, its work is done at once: nobody could tell. Else its
  /// work, too, is done when somebody waits for it.
  void give(simt_stream* on, std::function<void()> piece) { give(on, {}, std::move(piece)); }
  void give(simt_stream* on, const work_name& name, std::function<void()> piece) {
    simt_stream& s = on ? *on : standard;
    if (s.in) return s.in->add(name, std::move(piece));
    ++counts.given;
    s.work.emplace_back(next_of(s, name), std::move(piece));
    ++s.given;
    if (!on && streams.empty()) run(s);
  }
};
inline gpu device;

template <class Owner, class T>
bool known(const std::set<Owner>& all, const T* one) {
  for (const auto& p : all) {
    if (p.get() == one) return true;
  }
  return false;
}
template <class Owner, class T>
void forget(std::set<Owner>& all, const T* one) {
  std::erase_if(all, [=](const auto& p) { return p.get() == one; });
}

/// A call that captures do not allow makes `c` invalid. Returns: `code`.
inline cudaError_t broken(capture& c, cudaError_t code) {
  c.invalid = true;
  return code;
}
/// What a call that may wait for the device, or change what a capture has seen, finds: captures of this thread do not
/// allow it.
inline cudaError_t unsafe_call() {
  for (const auto& s : device.streams) {
    if (s->in && s->in->thread == std::this_thread::get_id()) return broken(*s->in, cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}
/// What giving work to a stream finds: a capture that is invalid.
inline cudaError_t may_give(const simt_stream* on) {
  return on && on->in && on->in->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

/// What every call of the runtime does first: a lost device stays lost, and a broken kernel is reported to somebody.
/// Returns: what `call` returns, which is remembered as the last error.
cudaError_t runtime_call(auto call) {
  if (device.later) std::rethrow_exception(std::exchange(device.later, nullptr));
  if (!device.has_driver) return device.report(cudaErrorInsufficientDriver);
  if (device.lost != cudaSuccess) return device.report(device.lost);
  const cudaError_t code = call();
  return device.report(device.lost != cudaSuccess ? device.lost : code);
}

/// What every call of a library's stand-in does first. `failed` is the library's status for an internal error.
/// Returns: what `call` returns; `failed` if that was ordered or the device is lost, and nothing is done then.
template <class Status, class F>
Status library_call(Status failed, F call) {
  if (device.later) std::rethrow_exception(std::exchange(device.later, nullptr));
  if (device.fail_library > 0 && --device.fail_library == 0) return failed;
  if (!device.has_driver || device.lost != cudaSuccess) return failed;
  return call();
}

}  // namespace simt
