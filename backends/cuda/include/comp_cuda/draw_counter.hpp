// SPDX-License-Identifier: Apache-2.0
// Counts, on the device, the dropouts before the work that runs now. A captured graph has fixed arguments but must draw
// other masks at each launch, so its kernels add this number to the draw of their arguments (comp_native/device.hpp).
// Outside of a capture a mask's draw is an argument of the launch, and the number is not used.
#pragma once

#include <comp_native/device.hpp>
#include <cstdint>
#include <memory>

#include "context.hpp"

namespace comp::cuda {

class draw_counter {
 public:
  explicit draw_counter(context& c) : held_{c.allocate(sizeof(std::uint64_t))} {}

  /// A key as a kernel takes it, and the number on the device that the kernel adds to the key's draw; null: none.
  struct place {
    native::dropout_key key;
    const std::uint64_t* draws;
  };
  /// Returns: `k` for a launch now; in a capture, `k` relative to the draws before the capture.
  place operator()(const native::dropout_key& k) {
    if (!capturing_) return {k, nullptr};
    used_ = true;
    return {{k.seed, k.draw - before_}, at()};
  }

  /// Begins a capture, before which `before` dropouts were drawn.
  void begin(std::uint64_t before) {
    capturing_ = true;
    used_ = false;
    before_ = before;
  }
  /// Ends the capture. Returns: whether it has any dropouts.
  bool end() {
    capturing_ = false;
    return used_;
  }
  std::uint64_t* at() const { return static_cast<std::uint64_t*>(held_->materialize()); }

 private:
  std::shared_ptr<memory> held_;
  bool capturing_ = false, used_ = false;
  std::uint64_t before_ = 0;
};

}  // namespace comp::cuda
