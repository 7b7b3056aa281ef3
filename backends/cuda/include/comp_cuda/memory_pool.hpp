// SPDX-License-Identifier: Apache-2.0
// Device memory in the order of a stream: freed blocks are used again without waiting, and the driver keeps what it
// has. Live and peak bytes are counted here, as asked for and rounded to 512: what a plan needs, not what the driver
// holds. Where memory runs out, what is kept is given back and the allocation tried once more.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "capability.hpp"
#include "streams.hpp"

namespace comp::cuda {

class memory_pool;

/// Device memory; freed in the order of the stream that uses it. Empty after a move.
class device_block {
 public:
  device_block() = default;
  device_block(device_block&& other) noexcept
      : pool_{std::exchange(other.pool_, nullptr)},
        data_{std::exchange(other.data_, nullptr)},
        bytes_{other.bytes_},
        on_{other.on_} {}
  device_block& operator=(device_block&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(on_, other.on_);
    return *this;
  }
  inline ~device_block();
  void* data() const { return data_; }
  std::int64_t bytes() const { return pool_ ? bytes_ : 0; }
  /// From now on `stream` uses it, which must wait for the one before: it is freed in the order of `stream`.
  void hand_to(cudaStream_t stream) { on_ = stream; }

 private:
  friend class memory_pool;
  device_block(memory_pool* pool, void* data, std::int64_t bytes, cudaStream_t on)
      : pool_{pool}, data_{data}, bytes_{bytes}, on_{on} {}
  memory_pool* pool_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  cudaStream_t on_ = nullptr;
};

/// Outlives its blocks. Not for several threads at once.
class memory_pool {
 public:
  explicit memory_pool(const capability& of) : device_{of} {
    require<error>(of.memory_pools, "a memory pool on {} (its driver has none): update the driver", of.name);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = of.device;
    check(cudaMemPoolCreate(&pool_, &properties), "making a memory pool");
    std::uint64_t all = std::numeric_limits<std::uint64_t>::max();  // keep what is freed
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all), "setting what a memory pool keeps");
  }
  memory_pool(const memory_pool&) = delete;
  memory_pool& operator=(const memory_pool&) = delete;
  ~memory_pool() { (void)cudaMemPoolDestroy(pool_); }

  /// Throws: comp::out_of_memory, with sizes, where there is not enough even after giving back what is kept.
  device_block allocate(std::int64_t bytes, cudaStream_t on) {
    const std::int64_t rounded = (bytes + granule - 1) / granule * granule;
    if (rounded == 0) return {};
    void* data = nullptr;
    cudaError_t code = cudaMallocFromPoolAsync(&data, static_cast<std::size_t>(rounded), pool_, on);
    if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      check(cudaDeviceSynchronize(), "waiting for memory to be freed");
      check(cudaMemPoolTrimTo(pool_, 0), "giving back memory");
      code = cudaMallocFromPoolAsync(&data, static_cast<std::size_t>(rounded), pool_, on);
    }
    check(code, fmt::format("allocating {} bytes with {} of {} in use", rounded, live_, device_.memory_bytes));
    live_ += rounded;
    peak_ = peak_ < live_ ? live_ : peak_;
    return {this, data, rounded, on};
  }
  std::int64_t live_bytes() const { return live_; }
  std::int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }

 private:
  friend class device_block;
  static constexpr std::int64_t granule = 512;
  void free(void* data, std::int64_t bytes, cudaStream_t on) {
    (void)cudaFreeAsync(data, on);  // after a lost device there is nothing to free
    live_ -= bytes;
  }
  capability device_;
  cudaMemPool_t pool_ = nullptr;
  std::int64_t live_ = 0, peak_ = 0;
};

inline device_block::~device_block() {
  if (pool_) pool_->free(data_, bytes_, on_);
}

}  // namespace comp::cuda
