// SPDX-License-Identifier: Apache-2.0
// Device memory in the order of a stream: freed blocks are used again without waiting, and the driver keeps what it
// has. Live and peak bytes are counted here, as asked for and rounded to 512: what a plan needs, not what the driver
// holds. Where memory runs out, what is kept is given back and the allocation tried once more; after one that failed,
// what the work left behind is given back too, since libraries load their code beside the pool.
// While a stream is captured, what is allocated belongs to the graph, and is counted where the graph runs.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

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
        on_{other.on_},
        graph_{other.graph_} {}
  device_block& operator=(device_block&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(on_, other.on_);
    std::swap(graph_, other.graph_);
    return *this;
  }
  inline ~device_block();
  void* data() const { return data_; }
  std::int64_t bytes() const { return pool_ ? bytes_ : 0; }
  /// From now on `stream` uses it, which must wait for the one before: it is freed in the order of `stream`.
  void hand_to(cudaStream_t stream) { on_ = stream; }
  /// The number of the capture that has allocated it; 0: none.
  std::uint64_t graph() const { return graph_; }

 private:
  friend class memory_pool;
  device_block(memory_pool* pool, void* data, std::int64_t bytes, cudaStream_t on, std::uint64_t graph)
      : pool_{pool}, data_{data}, bytes_{bytes}, on_{on}, graph_{graph} {}
  memory_pool* pool_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  cudaStream_t on_ = nullptr;
  std::uint64_t graph_ = 0;
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
    if (graph_ == 0 && std::exchange(ran_out_, false)) give_back();
    void* data = nullptr;
    cudaError_t code = cudaMallocFromPoolAsync(&data, static_cast<std::size_t>(rounded), pool_, on);
    if (code == cudaErrorMemoryAllocation && graph_ == 0) {
      (void)cudaGetLastError();
      give_back();
      code = cudaMallocFromPoolAsync(&data, static_cast<std::size_t>(rounded), pool_, on);
    }
    ran_out_ = ran_out_ || code == cudaErrorMemoryAllocation;
    check(code, fmt::format("allocating {} bytes with {} of {} in use", rounded, live_, device_.memory_bytes));
    live_ += rounded;
    peak_ = peak_ < live_ ? live_ : peak_;
    const std::uint64_t of = on == captured_ ? graph_ : 0;
    left_of_graphs_ += of != 0;
    return {this, data, rounded, on, of};
  }

  /// To be called around a capture. Memory from before that is given back meanwhile is freed after it.
  void begin_graph(cudaStream_t captured) {
    captured_ = captured;
    graph_ = ++graphs_;
    live_before_ = live_;
    peak_before_ = std::exchange(peak_, live_);
  }
  /// Returns: the most bytes that the work of the graph has in use beside what was there.
  std::int64_t end_graph() {
    graph_ = 0;
    const std::int64_t most = peak_ - live_before_;
    peak_ = peak_before_;
    for (const auto& [data, on] : std::exchange(later_, {})) (void)cudaFreeAsync(data, on);
    return most;
  }
  /// How many blocks of graphs are in use although their capture has ended: nothing is behind them.
  std::size_t left_of_graphs() const { return left_of_graphs_; }
  /// Work runs that has `bytes` more in use in its middle.
  void count_run(std::int64_t bytes) { peak_ = peak_ < live_ + bytes ? live_ + bytes : peak_; }

  /// What is kept for later and not in use, here and by graphs. Waits for the device.
  void give_back() {
    check(cudaDeviceSynchronize(), "waiting for memory to be freed");
    check(cudaMemPoolTrimTo(pool_, 0), "giving back memory");
    check(cudaDeviceGraphMemTrim(device_.device), "giving back memory of graphs");
  }
  std::int64_t live_bytes() const { return live_; }
  std::int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }
  /// After work that is no part of a plan, such as a measurement: its memory does not count. `before`: the peak then.
  void forget_peak_since(std::int64_t before) { peak_ = before < live_ ? live_ : before; }

 private:
  friend class device_block;
  static constexpr std::int64_t granule = 512;
  void free(const device_block& b) {
    live_ -= b.bytes_;
    left_of_graphs_ -= b.graph_ != 0;
    if (b.graph_ != 0 && b.graph_ != graph_) return;  // it went with its graph
    if (b.graph_ == 0 && graph_ != 0 && b.on_ == captured_) return later_.emplace_back(b.data_, b.on_), void();
    (void)cudaFreeAsync(b.data_, b.on_);  // after a lost device there is nothing to free
  }
  capability device_;
  cudaMemPool_t pool_ = nullptr;
  std::int64_t live_ = 0, peak_ = 0;
  bool ran_out_ = false;                  // since memory was given back
  std::uint64_t graph_ = 0, graphs_ = 0;  // the capture that goes on, 0 for none, and how many there were
  cudaStream_t captured_ = nullptr;
  std::int64_t live_before_ = 0, peak_before_ = 0;
  std::size_t left_of_graphs_ = 0;
  std::vector<std::pair<void*, cudaStream_t>> later_;  // given back during a capture that has not allocated them
};

inline device_block::~device_block() {
  if (pool_) pool_->free(*this);
}

}  // namespace comp::cuda
