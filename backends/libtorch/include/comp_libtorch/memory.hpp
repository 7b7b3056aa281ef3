// SPDX-License-Identifier: Apache-2.0
// The most memory in use during a run. On a device: its caching allocator's own peak. On a CPU: what the allocator
// reports to this thread and to the threads that LibTorch hands work on to (backward, at::launch), over what the
// training holds when the run begins. Not seen on a CPU: memory of libraries (oneDNN's scratchpads) and of threads of
// the user's own. Not here: the limit of memory (exceptions.hpp).
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

namespace comp::libtorch {

/// Bytes of the distinct storages behind `tensors`; undefined ones count nothing.
inline std::int64_t bytes_held(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> seen;
  std::int64_t bytes = 0;
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || !t.has_storage() || !seen.insert(t.storage().unsafeGetStorageImpl()).second) continue;
    bytes += static_cast<std::int64_t>(t.storage().nbytes());
  }
  return bytes;
}

namespace detail {

/// Counts what the CPU allocator says. Frees of blocks that it never reported (older than the first meter) are not
/// told.
class allocation_counter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*block*/, std::int64_t size, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    const std::int64_t now = current_.fetch_add(size, std::memory_order_relaxed) + size;
    std::int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) continue;
  }
  bool memoryProfilingEnabled() const override { return true; }

  void start(std::int64_t held) {
    current_ = held;
    peak_ = held;
  }
  std::int64_t peak() const { return peak_; }

 private:
  std::atomic<std::int64_t> current_ = 0, peak_ = 0;
};

}  // namespace detail

/// Measures from its construction on, while it lives: one run. Nested in another one (or in LibTorch's profiler) it
/// counts, and the outer one does not.
class memory_meter {
 public:
  /// `held`: what the training keeps from step to step, counted in on a CPU.
  memory_meter(c10::Device device, std::int64_t held) : device_{device} {
    if (device_.is_cpu()) {
      counter_ = std::make_shared<detail::allocation_counter>();
      counter_->start(held);
      reporting_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, counter_);
    } else if (allocator() != nullptr) {
      allocator()->resetPeakStats(device_.index());
    }
  }

  /// Bytes; 0 where the device does not say.
  std::int64_t peak() const {
    if (counter_) return counter_->peak();
    if (allocator() == nullptr) return 0;
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator()->getDeviceStats(device_.index()).allocated_bytes[all].peak;
  }

 private:
  c10::DeviceAllocator* allocator() const {
    auto* found = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device_.type()));
    return found != nullptr && found->initialized() ? found : nullptr;
  }

  c10::Device device_;
  std::shared_ptr<detail::allocation_counter> counter_;
  std::unique_ptr<c10::DebugInfoGuard> reporting_;
};

}  // namespace comp::libtorch
