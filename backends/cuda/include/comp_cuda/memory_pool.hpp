// SPDX-License-Identifier: Apache-2.0
// Device memory that is allocated and freed in the order of a stream: a freed block is used again without waiting for
// the device, and the driver keeps freed memory for later. The pool counts live and peak bytes as they are asked for,
// rounded up to 512. This is what a plan needs; what the driver holds would depend on the plans before.
// When memory runs out, the pool gives kept memory back to the driver and tries once more. If that fails too, the next
// allocation gives memory back first, since libraries load their code into memory outside of the pool.
// What is allocated while a stream is captured belongs to the graph, and counts when the graph runs.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "capability.hpp"
#include "streams.hpp"

namespace comp::cuda {

class memory_pool;

/// One block of device memory, freed in the order of the stream that uses it. Empty after a move.
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
  /// Says that `stream` uses the block from now on, and frees it in its order.
  /// Requires: `stream` waits for the work that used the block before.
  void hand_to(cudaStream_t stream) { on_ = stream; }
  /// Returns: the number of the capture that allocated the block; 0 if none did.
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

/// Requires: the pool outlives its blocks, and one thread at a time uses it.
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

  /// Throws: comp::out_of_memory, with the sizes, if there is not enough even after kept memory was given back.
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

  /// Must be called before a capture, and end_graph() after it. A block from before that is freed meanwhile goes to the
  /// driver after the capture, since its free would become part of the graph.
  void begin_graph(cudaStream_t captured) {
    captured_ = captured;
    graph_ = ++graphs_;
    live_before_ = live_;
    peak_before_ = std::exchange(peak_, live_);
  }
  /// Returns: the most bytes that the graph's own blocks take at once.
  std::int64_t end_graph() {
    graph_ = 0;
    const std::int64_t most = peak_ - live_before_;
    peak_ = peak_before_;
    for (const auto& [data, on] : std::exchange(later_, {})) (void)cudaFreeAsync(data, on);
    return most;
  }
  /// Returns: how many handles still hold a block that a capture allocated. Between launches of the graph such a block
  /// has no memory behind it, so that its work cannot be kept as a graph.
  std::size_t left_of_graphs() const { return left_of_graphs_; }
  /// Counts a graph's run in the peak: it takes `bytes` beside what is live.
  void count_run(std::int64_t bytes) { peak_ = peak_ < live_ + bytes ? live_ + bytes : peak_; }

  /// Gives the driver the memory that the pool and the graphs keep and do not use. Waits for the device.
  void give_back() {
    check(cudaDeviceSynchronize(), "waiting for memory to be freed");
    check(cudaMemPoolTrimTo(pool_, 0), "giving back memory");
    check(cudaDeviceGraphMemTrim(device_.device), "giving back memory of graphs");
  }
  std::int64_t live_bytes() const { return live_; }
  std::int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }
  /// Leaves work that is no part of a plan, such as a measurement of algorithms, out of the peak.
  /// before: peak_bytes() before that work.
  void forget_peak_since(std::int64_t before) { peak_ = before < live_ ? live_ : before; }

 private:
  friend class device_block;
  static constexpr std::int64_t granule = 512;
  void free(const device_block& b) {
    live_ -= b.bytes_;
    left_of_graphs_ -= b.graph_ != 0;
    if (b.graph_ != 0 && b.graph_ != graph_) return;  // its graph owns the memory
    const bool is_capturing = b.graph_ == 0 && graph_ != 0 && b.on_ == captured_;
    if (is_capturing) later_.emplace_back(b.data_, b.on_);
    if (!is_capturing) (void)cudaFreeAsync(b.data_, b.on_);  // fails only after a lost device: nothing is left to free
  }
  capability device_;
  cudaMemPool_t pool_ = nullptr;
  std::int64_t live_ = 0, peak_ = 0;
  bool ran_out_ = false;                  // True if an allocation has failed since memory was given back
  std::uint64_t graph_ = 0, graphs_ = 0;  // the number of the running capture, 0 for none; how many there were
  cudaStream_t captured_ = nullptr;
  std::int64_t live_before_ = 0, peak_before_ = 0;
  std::size_t left_of_graphs_ = 0;
  std::vector<std::pair<void*, cudaStream_t>> later_;  // blocks from before the capture, to be freed after it
};

inline device_block::~device_block() {
  if (pool_) pool_->free(*this);
}

}  // namespace comp::cuda
