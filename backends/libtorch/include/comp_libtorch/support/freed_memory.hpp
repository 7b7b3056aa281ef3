// SPDX-License-Identifier: Apache-2.0
// Keeps the pages of CPU blocks when the blocks are freed. A training asks for the same sizes in each step; pages that
// went back to the system would be faulted in and zeroed anew. All blocks are in one reserved range of addresses. Free
// ranges join with their neighbours, and the smallest one that fits is taken. Use from several threads is safe. glibc's
// mallopt would do it for every allocation of the process, without a bound.
#pragma once

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace comp::libtorch::detail {

class page_keeper {
 public:
  static constexpr std::size_t alignment = 64;        // [bytes], as LibTorch's own blocks have
  static constexpr std::size_t smallest = 16 * 1024;  // [bytes]: smaller blocks are left to the C library

  /// Reserves addresses, but no memory, for `bytes` at most. If the system refuses, allocate() always returns null.
  explicit page_keeper(std::size_t bytes) {
    bytes -= bytes % alignment;
    void* range = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return;
    begin_ = static_cast<std::byte*>(range);
    end_ = begin_ + bytes;
    freed_at_ = static_cast<std::uint32_t*>(std::calloc(bytes / chunk + 1, sizeof(std::uint32_t)));
    if (freed_at_ != nullptr) add_free(begin_, bytes);
  }
  page_keeper(const page_keeper&) = delete;
  page_keeper& operator=(const page_keeper&) = delete;
  ~page_keeper() {
    if (begin_ != nullptr) ::munmap(begin_, static_cast<std::size_t>(end_ - begin_));
    std::free(freed_at_);
  }

  /// Returns: null for small blocks, and if no free range is large enough. The values in a block are undefined.
  void* allocate(std::size_t bytes) {
    if (bytes < smallest || bytes > static_cast<std::size_t>(end_ - begin_)) return nullptr;
    const std::size_t needed = (bytes + alignment - 1) / alignment * alignment + alignment;
    const std::lock_guard only_one{mutex_};
    const auto range = by_size_.lower_bound({needed, nullptr});
    if (range == by_size_.end()) return nullptr;
    const auto [size, at] = *range;
    by_size_.erase(range);
    by_place_.erase(at);
    if (size > needed) add_free(at + needed, size - needed);
    *reinterpret_cast<std::size_t*>(at) = needed;  // the size of a block stands before it
    return at + alignment;
  }
  bool owns(const void* block) const { return block >= begin_ && block < end_; }
  /// Requires: the keeper owns `block`.
  static std::size_t size_of(const void* block) { return *size_before(block) - alignment; }

  void give_back(void* block) {
    auto* at = static_cast<std::byte*>(block) - alignment;
    const std::lock_guard only_one{mutex_};
    std::size_t size = *size_before(block);
    note_freed(at, size);
    auto next = by_place_.lower_bound(at);
    if (next != by_place_.end() && at + size == next->first) {
      size += next->second;
      next = drop(next);
    }
    if (next != by_place_.begin()) {
      if (const auto before = std::prev(next); before->first + before->second == at) {
        at = before->first;
        size += before->second;
        drop(before);
      }
    }
    add_free(at, size);
  }

  /// A fork copies the lock as it is. If another thread held it, it would never be free in the child.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

  /// Gives the pages of all free ranges back to the system.
  void release() { release_unused(0); }
  /// Does the same, but for pages of blocks that were freed in the last `seconds`.
  void release_unused(std::uint32_t seconds) {
    const std::lock_guard only_one{mutex_};
    const std::uint32_t now = this->now();
    const auto unused = [&](std::size_t c) { return freed_at_[c] != 0 && now - freed_at_[c] >= seconds; };
    for (const auto& [at, size] : by_place_) {
      const std::size_t last = std::min(chunk_of(at + size - 1) + 1, chunks_);
      for (std::size_t c = chunk_of(at); c < last; ++c) {
        if (!unused(c)) continue;
        const std::size_t first = c;
        while (c + 1 < last && unused(c + 1)) ++c;
        give_to_system(std::max(at, begin_ + first * chunk), std::min(at + size, begin_ + (c + 1) * chunk));
      }
    }
    bool any = false;
    for (std::size_t c = 0; c < chunks_; ++c) {
      if (unused(c)) freed_at_[c] = 0;
      any = any || freed_at_[c] != 0;
    }
    keeps_ = any;
  }
  /// Returns: whether pages of freed blocks are kept.
  bool keeps() const { return keeps_; }

 private:
  using places = std::map<std::byte*, std::size_t>;

  static constexpr std::size_t chunk = 256 * 1024;  // [bytes]: the unit for which the time of the last free is known

  std::size_t chunk_of(const std::byte* at) const { return static_cast<std::size_t>(at - begin_) / chunk; }
  /// Returns: the seconds since the keeper was made, counted from 1 because 0 stands for never.
  std::uint32_t now() const { return static_cast<std::uint32_t>(seconds_now() - began_ + 1); }
  static long seconds_now() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec;
  }
  void note_freed(const std::byte* at, std::size_t size) {
    const std::size_t last = chunk_of(at + size - 1) + 1;
    std::fill(freed_at_ + chunk_of(at), freed_at_ + last, now());
    chunks_ = std::max(chunks_, last);
    keeps_ = true;
  }
  static void give_to_system(std::byte* begin, std::byte* end) {
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(begin) + page - 1) / page * page;
    const std::uintptr_t last = reinterpret_cast<std::uintptr_t>(end) / page * page;
    if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

  static const std::size_t* size_before(const void* block) {
    return reinterpret_cast<const std::size_t*>(static_cast<const std::byte*>(block) - alignment);
  }
  void add_free(std::byte* at, std::size_t size) {
    by_place_.emplace(at, size);
    by_size_.emplace(size, at);
  }
  places::iterator drop(places::iterator at) {
    by_size_.erase({at->second, at->first});
    return by_place_.erase(at);
  }

  std::mutex mutex_;
  std::byte *begin_ = nullptr, *end_ = nullptr;
  std::uint32_t* freed_at_ = nullptr;  // for each chunk the second in which a block in it was last freed; 0: never, or
                                       // its pages went back since
  std::size_t chunks_ = 0;             // chunks up to the last one that ever had a block
  long began_ = seconds_now();
  std::atomic<bool> keeps_ = false;
  places by_place_;                                       // the free ranges: their sizes by their addresses
  std::set<std::pair<std::size_t, std::byte*>> by_size_;  // the same ranges by size
};

}  // namespace comp::libtorch::detail
