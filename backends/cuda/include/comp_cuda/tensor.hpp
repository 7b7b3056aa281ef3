// SPDX-License-Identifier: Apache-2.0
// The handles that users hold: tensors and indices in device memory. Copying shares the memory, which outlives the
// device where a handle does; nothing is written through a handle once an operator has returned it.
#pragma once

#include <comp/core/precision.hpp>
#include <comp_native/device.hpp>
#include <comp_native/math/formats.hpp>
#include <comp_native/storage.hpp>
#include <cstddef>
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

/// Where the elements of a (B,C,H,W) lie: as they are counted, or the channels of a pixel side by side, as tensor cores
/// want them. Anything but four axes is row-major.
enum class order : std::uint8_t { row_major, channels_last };

using native::storage;
using native::storage_of;
using native::with_storage;
constexpr std::int64_t bytes_of(storage s) { return s == storage::fp32 ? 4 : 2; }

class memory;
/// What fills memory when somebody asks where it is; see pending.hpp.
class pending_work {
 public:
  virtual ~pending_work() = default;
  /// Gives `into` its place and the stream the work that fills it.
  virtual void run(memory& into) = 0;
  /// Whether it reads what is changed in place: values of parameters.
  virtual bool reads_parameters() const { return false; }
};
/// What fusing has saved so far.
struct fusion_counts {
  std::int64_t operators = 0, launches = 0;  // element-wise ones, and what they took
  std::int64_t bytes_saved = 0;              // neither written nor read again
};

/// What memory of the device needs to live: the pool it is from and the stream it is freed on.
struct lifeline {
  capability card;
  memory_pool pool;
  owned_stream stream;
  std::map<std::uint64_t, memory*> waiting;  // to be filled, in the order they were made
  std::uint64_t made = 0;
  fusion_counts fused;
  explicit lifeline(const capability& of) : card{current(of)}, pool{card} {}

 private:
  /// Streams belong to the GPU that is current when they are made.
  static const capability& current(const capability& of) {
    check(cudaSetDevice(of.device), "choosing a GPU");
    return of;
  }
};
/// Memory of the device that keeps its pool alive. Its place may come to be only when it is asked for.
class memory {
 public:
  memory(std::shared_ptr<lifeline> of, std::int64_t bytes) : of_{std::move(of)}, asked_{bytes} { take_place(); }
  memory(std::shared_ptr<lifeline> of, device_block block) : of_{std::move(of)}, block_{std::move(block)} {}
  memory(std::shared_ptr<lifeline> of, std::int64_t bytes, std::unique_ptr<pending_work> pending)
      : of_{std::move(of)}, asked_{bytes}, pending_{std::move(pending)}, serial_{of_->made++} {
    of_->waiting.emplace(serial_, this);
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() {
    if (pending_) of_->waiting.erase(serial_);
  }

  /// Gives the stream what is to fill it, where that is pending. Returns: its place.
  /// Throws: what allocating and launching throw.
  void* materialize() {
    if (pending_) pending_->run(*this);
    return block_.data();
  }
  std::int64_t bytes() const { return block_.bytes(); }
  std::uint64_t graph() const { return block_.graph(); }
  lifeline& life() const { return *of_; }
  /// What was made of its contents for others to find, and goes with it (fp8.hpp).
  std::shared_ptr<void> derived;

  // For what fills it
  pending_work* pending() const { return pending_.get(); }
  void* take_place() {
    if (!block_.data()) block_ = of_->pool.allocate(asked_, of_->stream.get());
    return block_.data();
  }
  /// Its place is that of `from`, which has none then.
  void* take_place_of(memory& from) {
    block_ = std::move(from.block_);
    return block_.data();
  }
  /// No longer pending. Returns: what filled it, which may hold the memory that it read.
  std::unique_ptr<pending_work> release_pending() {
    of_->waiting.erase(serial_);
    return std::move(pending_);
  }

 private:
  std::shared_ptr<lifeline> of_;
  device_block block_;  // given back before its pool
  std::int64_t asked_ = 0;
  std::unique_ptr<pending_work> pending_;
  std::uint64_t serial_ = 0;
};

/// Cheap to copy. An empty one holds nothing and is false.
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

  /// Where its elements lie; what is pending is given to the stream first.
  void* materialize() const { return memory_ ? memory_->materialize() : nullptr; }
  /// T: what storage_of(precision()) says.
  template <class T>
  T* materialize_as() const {
    return static_cast<T*>(materialize());
  }
  const std::shared_ptr<cuda::memory>& held() const { return memory_; }
  /// The same memory, read as another shape, or as another precision that is stored alike.
  tensor viewed(cuda::shape extents) const { return {std::move(extents), precision_, order_, memory_}; }
  tensor viewed(comp::precision p) const { return {extents_, p, order_, memory_}; }

 private:
  cuda::shape extents_;
  comp::precision precision_ = comp::precision::fp32;
  cuda::order order_ = cuda::order::row_major;
  std::shared_ptr<cuda::memory> memory_;
};

/// What is known of indices where they come from, so that wrong ones are refused without asking the device.
struct index_range {
  std::int32_t least = 0, most = 0;
  std::int64_t counted = 0;  // that are not negative: targets that count
};

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
