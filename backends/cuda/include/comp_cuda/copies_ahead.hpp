// SPDX-License-Identifier: Apache-2.0
// Copies the next batch to the device while the current one trains (comp_native/batch_feed.hpp). The loader's threads
// write batches into pinned memory, and a stream of their own copies them, so that work on the compute stream does not
// delay a copy. The compute stream waits for a batch when it reads it; the host waits before the loader overwrites the
// pinned memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "prefetch.hpp"
#include "transfer.hpp"

namespace comp::cuda {

/// A copy that was begun. If nobody takes it, its memory is freed when the copy has ended.
class arriving {
 public:
  arriving(device_block to, std::int64_t bytes, event landed, const index_range& range)
      : to_{std::move(to)}, bytes_{bytes}, landed_{std::move(landed)}, range_{range} {}
  std::int64_t bytes() const { return bytes_; }
  const index_range& range() const { return range_; }
  /// Returns: the memory. Work that `c` gets from now on waits for the copy.
  std::shared_ptr<memory> taken(context& c) {
    c.stream().wait_for(landed_);
    to_.hand_to(c.stream().get());
    return c.adopt(std::move(to_));
  }

 private:
  device_block to_;
  std::int64_t bytes_;
  event landed_;
  index_range range_;  // for indices
};

/// The part of a context that copies batches ahead.
class copies_ahead {
 public:
  explicit copies_ahead(context& c) : c_{&c}, staging_{c.chosen().pinned_limit, copies_} {}

  /// Returns: the memory in which the loader makes batches.
  std::pmr::memory_resource& staging_memory() { return staging_; }
  /// Begins a copy. Waits for it if `from` is not in a pinned block of staging_memory().
  arriving start(std::span<const std::byte> from, const index_range& range = {}) {
    device_block to = c_->pool().allocate(std::ssize(from), copies_.get());
    event landed{cudaEventDisableTiming};
    check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyHostToDevice, copies_.get()),
          "copying a batch");
    copies_.record(landed);
    if (!staging_.pins(from)) copies_.synchronize();  // whether the driver reads pageable memory later is not fixed
    return {std::move(to), std::ssize(from), std::move(landed), range};
  }
  void wait() const { copies_.synchronize(); }

 private:
  /// Pinned memory for allocations up to settings::pinned_limit, ordinary memory for larger ones.
  class staging final : public std::pmr::memory_resource {
   public:
    staging(std::int64_t limit, const owned_stream& copies) : limit_{limit}, copies_{&copies} {}
    bool pins(std::span<const std::byte> all) const {
      return std::ranges::any_of(blocks_, [&](const pinned_block& b) {
        const auto* first = static_cast<const std::byte*>(b.data());
        return all.data() >= first && all.data() + all.size() <= first + b.bytes();
      });
    }

   private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      if (std::cmp_greater(bytes, limit_)) return std::pmr::new_delete_resource()->allocate(bytes, alignment);
      return blocks_.emplace_back(bytes).data();
    }
    void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
      (void)cudaStreamSynchronize(copies_->get());  // a copy may still read it
      const auto found = std::ranges::find(blocks_, p, &pinned_block::data);
      if (found == blocks_.end()) return std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
      std::swap(*found, blocks_.back());
      blocks_.pop_back();
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

    std::int64_t limit_;
    const owned_stream* copies_;
    std::vector<pinned_block> blocks_;
  };

  context* c_;
  owned_stream copies_;
  staging staging_;
};

/// Returns: the FP32 values of an image's bytes (N,C,...), which cross to the device as bytes since these are a quarter
/// of the size. of_bytes: the table of values by channel and byte (comp_native/batch_upload.hpp).
inline tensor values_of(context& c, const std::shared_ptr<memory>& bytes, std::int64_t count, const shape& extents,
                        const tensor& of_bytes) {
  require_some("upload", extents);
  const index channels = of_bytes.shape().front();
  require<error>(extents.size() > 1 && extents[1] == channels && count == elements(extents),
                 "upload of {} bytes as {}, with values for {} channels (they must agree): give as many bytes", count,
                 text(extents), channels);
  const tensor to = c.make(extents, precision::fp32);
  const index rows = extents[0] * channels;
  values_of_bytes(c.stream().get(), static_cast<const std::uint8_t*>(bytes->materialize()),
                  of_bytes.materialize_as<const float>(), to.materialize_as<float>(), rows, channels,
                  elements(extents) / rows);
  return to;
}
inline tensor upload(context& c, std::span<const std::uint8_t> from, const shape& extents, const tensor& of_bytes) {
  return values_of(c, detail::brought(c, std::as_bytes(from)), std::ssize(from), extents, of_bytes);
}

/// Returns: how many threads load batches: one less than the machine has, since one launches work, and 8 at most.
inline int loading_threads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2U, 9U)) - 1; }
inline arriving copy_ahead(context& c, std::span<const float> from) {
  return c.part<copies_ahead>().start(std::as_bytes(from));
}
inline arriving copy_ahead(context& c, std::span<const std::uint8_t> from) {
  return c.part<copies_ahead>().start(std::as_bytes(from));
}
inline arriving copy_ahead(context& c, std::span<const std::int32_t> from) {
  return c.part<copies_ahead>().start(std::as_bytes(from), detail::range_of(from));
}
inline tensor arrived(context& c, arriving from, const shape& extents) {
  return {extents, precision::fp32, order::row_major, from.taken(c)};
}
inline tensor arrived(context& c, arriving from, const shape& extents, const tensor& of_bytes) {
  return values_of(c, from.taken(c), from.bytes(), extents, of_bytes);
}
inline indices arrived_indices(context& c, arriving from, shape extents) {
  auto at = from.taken(c);
  return {std::move(extents), std::move(at), from.range()};
}

}  // namespace comp::cuda
