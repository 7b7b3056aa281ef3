// SPDX-License-Identifier: Apache-2.0
// Switches LibTorch's own autocast on while an object lives, as Python's `with torch.autocast(...)` does. Written by
// hand, this goes wrong easily: casts of weights go stale in the cache, and an exception leaves autocast on. It is also
// the baseline that plans are compared with.
//   { comp::libtorch::autocast_guard on{at::kCPU}; loss = cross_entropy(net->forward(x), y); }
//   loss.backward();                                          // outside, as PyTorch advises
// It switches this thread only, as LibTorch does. A plan's region refuses to open while autocast is on.
#pragma once

#include <ATen/autocast_mode.h>

#include <comp/core/error.hpp>
#include <optional>

namespace comp::libtorch {

class autocast_guard {
 public:
  /// `dtype`: what the operators on autocast's lists compute in; none: the device's default (BF16 on a CPU, FP16 on
  /// CUDA). `enabled`: false switches autocast off inside a region that has it on. `cache_weights`: whether LibTorch
  /// caches casts of weights; none: as it is (on, unless it was switched off). Throws: `settings_error` for a dtype
  /// that is no low precision.
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

  /// Puts everything back. The outermost guard also clears the cached casts of weights, because an optimizer step makes
  /// them stale.
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
