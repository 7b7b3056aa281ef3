// SPDX-License-Identifier: Apache-2.0
// The handles that users hold: tensors and indices in device memory. Copies of a handle share the memory, and keep it
// alive even after the device is gone. Nothing writes through a handle once an operator has returned it, so that copies
// cannot surprise each other.
#pragma once

#include <comp/core/precision.hpp>
#include <comp_native/device.hpp>
#include <comp_native/math/formats.hpp>
#include <comp_native/storage.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "memory_pool.hpp"

namespace comp::cuda {

using native::elements;
using native::shape;
using native::math::bf16;
using native::math::fp16;

/// How the elements of a (B,C,H,W) tensor lie in memory: in the order of its axes (NCHW), or with the channels of a
/// pixel side by side (NHWC), which tensor cores read fastest. Tensors of any other rank are row-major.
enum class order : std::uint8_t { row_major, channels_last };

using native::bytes_of;
using native::storage;
using native::storage_of;
using native::with_storage;

class memory;
/// Work that has been asked for and not yet launched. It runs when somebody asks for the address of its result, since
/// by then it is known which neighbours can share its launch (pending.hpp).
class pending_work {
 public:
  virtual ~pending_work() = default;
  /// Allocates `into` and launches the work that writes it.
  virtual void run(memory& into) = 0;
  /// True if it reads parameters, which the optimizer changes in place.
  virtual bool reads_parameters() const { return false; }
};
/// What fusing has saved so far.
struct fusion_counts {
  std::int64_t operators = 0, launches = 0;  // of element-wise operators, and how many launches they took
  std::int64_t bytes_saved = 0;              // of memory traffic: tensors that were not written or not read back
};

/// What device memory needs to outlive its device: the pool that it is from and the stream that frees it. Handles share
/// it.
struct lifeline {
  capability card;
  memory_pool pool;
  owned_stream stream;
  std::map<std::uint64_t, memory*> waiting;  // what is pending, in the order it was asked for
  std::uint64_t enqueued = 0;                // how much pending work there ever was: the next serial number
  fusion_counts fused;
  explicit lifeline(const capability& of) : card{current(of)}, pool{card} {}

 private:
  /// Chooses the GPU before the stream is made, which belongs to the GPU that is current then.
  static const capability& current(const capability& of) {
    check(cudaSetDevice(of.device), "choosing a GPU");
    return of;
  }
};
/// Device memory that keeps its pool alive. If its contents are pending, it is allocated when they are read.
class memory {
 public:
  memory(std::shared_ptr<lifeline> of, std::int64_t bytes) : of_{std::move(of)}, asked_{bytes} { take_place(); }
  memory(std::shared_ptr<lifeline> of, device_block block) : of_{std::move(of)}, block_{std::move(block)} {}
  memory(std::shared_ptr<lifeline> of, std::int64_t bytes, std::unique_ptr<pending_work> pending)
      : of_{std::move(of)}, asked_{bytes}, pending_{std::move(pending)}, serial_{of_->enqueued++} {
    of_->waiting.emplace(serial_, this);
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() {
    if (pending_) of_->waiting.erase(serial_);
  }

  /// Launches what is to fill the memory, if that is pending.
  /// Returns: its address. Throws: what allocating and launching throw.
  void* materialize() {
    if (pending_) pending_->run(*this);
    return block_.data();
  }
  std::int64_t bytes() const { return block_.bytes(); }
  std::uint64_t graph() const { return block_.graph(); }
  lifeline& life() const { return *of_; }
  /// What was computed from the contents for later readers, such as their FP8 form (fp8.hpp). It dies with the memory.
  std::shared_ptr<void> derived;

  // For the pending work that fills the memory:
  pending_work* pending() const { return pending_.get(); }
  void* take_place() {
    if (!block_.data()) block_ = of_->pool.allocate(asked_, of_->stream.get());
    return block_.data();
  }
  /// Takes over the block of `from`, which is empty afterwards: a result that stands there already needs no copy.
  void* take_place_of(memory& from) {
    block_ = std::move(from.block_);
    return block_.data();
  }
  /// Says that the contents are no longer pending.
  /// Returns: the work that wrote them. It holds the memory that it read, so the caller decides when that is freed.
  std::unique_ptr<pending_work> release_pending() {
    of_->waiting.erase(serial_);
    return std::move(pending_);
  }

 private:
  std::shared_ptr<lifeline> of_;
  device_block block_;  // after of_, so that it is freed before its pool
  std::int64_t asked_ = 0;
  std::unique_ptr<pending_work> pending_;
  std::uint64_t serial_ = 0;
};

/// A handle of a tensor, cheap to copy. A default-constructed one holds nothing and is false.
class tensor {
 public:
  tensor() = default;
  tensor(cuda::shape extents, comp::precision p, cuda::order places, std::shared_ptr<cuda::memory> memory)
      : extents_{std::move(extents)}, precision_{p}, order_{places}, memory_{std::move(memory)} {}

  const cuda::shape& shape() const { return extents_; }
  comp::precision precision() const { return precision_; }
  cuda::order order() const { return order_; }
  std::int64_t size() const { return elements(extents_); }
  explicit operator bool() const { return memory_ != nullptr; }

  /// Launches what is pending. Returns: the address of the first element.
  void* materialize() const { return memory_ ? memory_->materialize() : nullptr; }
  /// Requires: T is the type that storage_of(precision()) names.
  template <class T>
  T* materialize_as() const {
    return static_cast<T*>(materialize());
  }
  const std::shared_ptr<cuda::memory>& held() const { return memory_; }
  /// Returns: a handle of the same memory with another shape, or with another precision that is stored in the same way.
  tensor viewed(cuda::shape extents) const { return {std::move(extents), precision_, order_, memory_}; }
  tensor viewed(comp::precision p) const { return {extents_, p, order_, memory_}; }

 private:
  cuda::shape extents_;
  comp::precision precision_ = comp::precision::fp32;
  cuda::order order_ = cuda::order::row_major;
  std::shared_ptr<cuda::memory> memory_;
};

/// What the host saw of indices when it uploaded them. Operators refuse indices out of range by it, without waiting for
/// the device.
struct index_range {
  std::int32_t least = 0, most = 0;  // the smallest and the largest index
  std::int64_t counted = 0;          // how many are not negative; a loss leaves negative targets out of its mean
};

/// A handle of int32 indices: tokens, targets, ends of edges.
class indices {
 public:
  indices() = default;
  indices(cuda::shape extents, std::shared_ptr<cuda::memory> memory, const index_range& of)
      : extents_{std::move(extents)}, memory_{std::move(memory)}, range_{of} {}
  const cuda::shape& shape() const { return extents_; }
  const index_range& range() const { return range_; }
  std::int64_t size() const { return elements(extents_); }
  const std::int32_t* data() const {
    return memory_ ? static_cast<const std::int32_t*>(memory_->materialize()) : nullptr;
  }
  const std::shared_ptr<cuda::memory>& held() const { return memory_; }

 private:
  cuda::shape extents_;
  std::shared_ptr<cuda::memory> memory_;
  index_range range_;
};

}  // namespace comp::cuda
