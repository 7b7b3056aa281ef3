// SPDX-License-Identifier: Apache-2.0
// The handles that users hold: tensors and indices. Copying one shares its memory. That is safe because no operator
// writes to a tensor once it has been returned.
#pragma once

#include <comp/core/precision.hpp>
#include <comp_native/device.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "pool.hpp"

namespace comp::host {

/// A tensor: cheap to copy, and valid while the device that made it exists. An empty one is false.
class tensor {
 public:
  tensor() = default;
  tensor(host::shape extents, const host::layout* places, std::shared_ptr<block> memory)
      : extents_{std::move(extents)}, layout_{places}, memory_{std::move(memory)} {}

  const host::shape& shape() const { return extents_; }
  comp::precision precision() const { return layout_ ? layout_->precision : comp::precision::fp32; }
  explicit operator bool() const { return memory_ != nullptr; }

  const host::layout* layout() const { return layout_; }
  void* data() const { return memory_ ? memory_->data() : nullptr; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
  /// Returns the same memory read as another shape or layout.
  tensor viewed(host::shape extents, const host::layout* places) const { return {std::move(extents), places, memory_}; }

 private:
  host::shape extents_;
  const host::layout* layout_ = nullptr;
  std::shared_ptr<block> memory_;
};

using saved_tensor = native::with_saved<tensor>;

/// Integers: labels, tokens, lengths. They are cheap to copy, too.
class indices {
 public:
  indices() = default;
  indices(host::shape extents, std::vector<std::int32_t> values)
      : extents_{std::move(extents)}, values_{std::make_shared<const std::vector<std::int32_t>>(std::move(values))} {}
  const host::shape& shape() const { return extents_; }
  std::span<const std::int32_t> values() const {
    return values_ ? std::span<const std::int32_t>{*values_} : std::span<const std::int32_t>{};
  }

 private:
  host::shape extents_;
  std::shared_ptr<const std::vector<std::int32_t>> values_;
};

}  // namespace comp::host
