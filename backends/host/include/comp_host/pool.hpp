// SPDX-License-Identifier: Apache-2.0
// A pool of memory for tensors, parameters and scratch. Freed blocks are kept and handed out again, because the system
// would give fresh pages each time, which a step would fault in one by one.
// Blocks are aligned to a cache line and come in eight size classes per power of two, so that after one step the next
// ones ask the system for nothing. live and peak count exactly the bytes that were asked for; a block that waits to be
// reused is not live. Blocks may be freed from any thread, and after the device is gone.
#pragma once

#include <algorithm>
#include <bit>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::host {

class pool {
 public:
  static constexpr std::size_t alignment = 64;

  /// `limit` is the most bytes that may be live at once; 0: no limit but the system's.
  explicit pool(std::size_t limit = 0) : limit_{limit} {}
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;
  ~pool() { trim(); }

  /// Takes a block.
  /// Throws: out_of_memory, with the sizes, if the limit would be passed or the system has no memory.
  void* take(std::size_t bytes) {
    const std::lock_guard lock{mutex_};
    require<out_of_memory>(
        limit_ == 0 || bytes <= limit_ - std::min(limit_, live_),
        "{} bytes asked for with {} live (the memory limit is {}): use a smaller batch or raise the limit", bytes,
        live_, limit_);
    void* block = reused(size_class(bytes));
    if (!block) block = fresh(bytes);
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    return block;
  }
  void give(void* block, std::size_t bytes) noexcept {
    const std::lock_guard lock{mutex_};
    live_ -= bytes;
    free_[size_class(bytes)].push_back(block);
  }

  /// Gives every block that waits to be reused back to the system.
  void trim() noexcept {
    const std::lock_guard lock{mutex_};
    release_waiting();
  }
  std::size_t live() const { return locked(live_); }
  std::size_t peak() const { return locked(peak_); }
  std::size_t held() const {
    return locked(held_);
  }  // taken from the system: live blocks with their rounding, and waiting ones
  void reset_peak() {
    const std::lock_guard lock{mutex_};
    peak_ = live_;
  }

  /// Returns the size of the block for `bytes`: the next of eight steps per power of two, and at least a cache line.
  static constexpr std::size_t size_class(std::size_t bytes) {
    if (bytes <= 512) return std::max<std::size_t>(64, (bytes + 63) / 64 * 64);
    const std::size_t step = std::bit_floor(bytes - 1) / 8;
    return (bytes + step - 1) / step * step;
  }

 private:
  void* reused(std::size_t size) {
    const auto found = free_.find(size);
    if (found == free_.end() || found->second.empty()) return nullptr;
    void* block = found->second.back();
    found->second.pop_back();
    return block;
  }
  void* fresh(std::size_t bytes) {
    const std::size_t size = size_class(bytes);
    void* block = size < bytes ? nullptr : std::aligned_alloc(alignment, size);
    if (!block && size >= bytes) {  // blocks of other sizes may wait while the system has no more
      release_waiting();
      block = std::aligned_alloc(alignment, size);
    }
    require<out_of_memory>(block != nullptr,
                           "{} bytes asked for with {} live (the system has no more): use a smaller batch", bytes,
                           live_);
    held_ += size;
    return block;
  }
  void release_waiting() noexcept {
    for (auto& [size, blocks] : free_) {
      held_ -= size * blocks.size();
      for (void* block : blocks) std::free(block);
      blocks.clear();
    }
  }
  std::size_t locked(const std::size_t& value) const {
    const std::lock_guard lock{mutex_};
    return value;
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<void*>> free_;
  std::size_t limit_, live_ = 0, peak_ = 0, held_ = 0;
};

/// A block of a pool. Its destructor gives it back.
class block {
 public:
  block(std::shared_ptr<pool> from, std::size_t bytes)
      : from_{std::move(from)}, bytes_{bytes}, data_{from_->take(bytes)} {}
  block(const block&) = delete;
  block& operator=(const block&) = delete;
  ~block() { from_->give(data_, bytes_); }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<pool> from_;
  std::size_t bytes_;
  void* data_;
};

}  // namespace comp::host
