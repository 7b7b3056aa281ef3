// SPDX-License-Identifier: Apache-2.0
// Uploads that run beside the work of the compute stream: slots of pinned memory and a stream of their own. The host
// writes a slot again only after its copy has ended, and the compute stream waits for an upload only when it reads it.
// Work that the compute stream gets later never delays a copy.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "memory_pool.hpp"

namespace comp::cuda {

/// Pinned host memory, which the device reads without the host's help, so that copies from it are asynchronous.
class pinned_block {
 public:
  pinned_block() = default;
  explicit pinned_block(std::size_t bytes) : bytes_{bytes} {
    if (bytes) check(cudaMallocHost(&data_, bytes), "allocating pinned memory");
  }
  pinned_block(pinned_block&& other) noexcept : data_{std::exchange(other.data_, nullptr)}, bytes_{other.bytes_} {}
  pinned_block& operator=(pinned_block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~pinned_block() {
    if (data_) (void)cudaFreeHost(data_);
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return data_ ? bytes_ : 0; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A queue of uploads.
class prefetcher {
 public:
  /// depth: how many uploads may be in the queue. Each has a slot of pinned memory, which stays allocated.
  explicit prefetcher(memory_pool& pool, std::size_t depth = 2) : pool_{&pool}, slots_(depth) {}
  ~prefetcher() { (void)cudaStreamSynchronize(copies_.get()); }  // the device may still read pinned memory
  prefetcher(const prefetcher&) = delete;
  prefetcher& operator=(const prefetcher&) = delete;

  /// Begins an upload, and returns before it has ended. The caller may change `batch` then.
  /// Throws: error if the queue is full.
  void put(std::span<const std::byte> batch) {
    require<error>(waiting_ < slots_.size(), "one more batch is prefetched ({} wait already): take one first",
                   waiting_);
    slot& s = slots_[next_ % slots_.size()];
    s.copied.wait();
    if (s.host.bytes() < batch.size()) s.host = pinned_block{batch.size()};
    if (!batch.empty()) std::memcpy(s.host.data(), batch.data(), batch.size());
    s.device = pool_->allocate(static_cast<std::int64_t>(batch.size()), copies_.get());
    check(cudaMemcpyAsync(s.device.data(), s.host.data(), batch.size(), cudaMemcpyHostToDevice, copies_.get()),
          "copying a batch");
    copies_.record(s.copied);
    ++next_;
    ++waiting_;
  }
  /// Returns: the memory of the oldest upload. `compute` waits for the upload, and frees the memory in its order. If
  /// that fails, the upload is gone.
  device_block take(const owned_stream& compute) {
    require<error>(waiting_ > 0, "a batch is taken ({} wait): put one first", waiting_);
    slot& s = slots_[(next_ - waiting_) % slots_.size()];
    --waiting_;
    device_block taken = std::move(s.device);
    compute.wait_for(s.copied);
    taken.hand_to(compute.get());
    return taken;
  }

 private:
  struct slot {
    pinned_block host;
    device_block device;
    event copied{cudaEventDisableTiming};
  };
  memory_pool* pool_;
  owned_stream copies_;
  std::vector<slot> slots_;
  std::size_t next_ = 0, waiting_ = 0;
};

}  // namespace comp::cuda
