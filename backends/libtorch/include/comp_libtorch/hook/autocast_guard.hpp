// SPDX-License-Identifier: Apache-2.0
// LibTorch's own autocast for the life of an object, as Python's `with torch.autocast(...)`: what C++ users write by
// hand and get wrong (stale casts of weights, an exception that leaves it on). Also the baseline that plans are
// measured by.
//   { comp::libtorch::autocast_guard on{at::kCPU}; loss = cross_entropy(net->forward(x), y); }
//   loss.backward();                                          // outside, as PyTorch advises
// It switches this thread only, as LibTorch does. Not here: plans (program.hpp); the two exclude each other.
#pragma once

#include <ATen/autocast_mode.h>

#include <comp/core/error.hpp>
#include <optional>

namespace comp::libtorch {

class autocast_guard {
 public:
  /// `dtype`: what the listed operators compute in; none: the device's default (BF16 on CPU, FP16 on CUDA). `enabled`
  /// false switches autocast off inside a region that has it on. `cache_weights`: none: as it is (on, unless switched
  /// off). Throws: `settings_error` for a dtype that is no low precision.
  explicit autocast_guard(c10::DeviceType device, std::optional<at::ScalarType> dtype = std::nullopt,
                          bool enabled = true, std::optional<bool> cache_weights = std::nullopt)
      : device_{device},
        enabled_before_{at::autocast::is_autocast_enabled(device)},
        dtype_before_{at::autocast::get_autocast_dtype(device)},
        cache_before_{at::autocast::is_autocast_cache_enabled()} {
    const at::ScalarType low = dtype.value_or(dtype_before_);
    require<settings_error>(
        !enabled || low == at::kBFloat16 || low == at::kHalf,
        "autocast to {} (it lowers operators to bf16 or fp16): give one of those, or enabled = false",
        c10::toString(low));
    at::autocast::increment_nesting();
    at::autocast::set_autocast_dtype(device, low);
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_cache_enabled(cache_weights.value_or(cache_before_));
  }

  /// Puts everything back. The outermost one forgets the cached casts of weights, which an optimizer step makes stale.
  ~autocast_guard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(cache_before_);
    at::autocast::set_autocast_enabled(device_, enabled_before_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
  }

  autocast_guard(const autocast_guard&) = delete;
  autocast_guard& operator=(const autocast_guard&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_before_;
  at::ScalarType dtype_before_;
  bool cache_before_;
};

}  // namespace comp::libtorch
