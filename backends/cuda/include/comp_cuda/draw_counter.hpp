// SPDX-License-Identifier: Apache-2.0
// How many dropouts there were before the work that runs now, on the device: captured work draws other masks at each
// run. Inert outside of a capture: a mask's draw is then part of the launch.
#pragma once

#include <comp_native/device.hpp>
#include <cstdint>
#include <memory>

#include "context.hpp"

namespace comp::cuda {

class draw_counter {
 public:
  explicit draw_counter(context& c) : held_{c.allocate(sizeof(std::uint64_t))} {}

  /// A key as a kernel takes it, and the number on the device that is added to its draw; null: none.
  struct place {
    native::dropout_key key;
    const std::uint64_t* draws;
  };
  place operator()(const native::dropout_key& k) {
    if (!capturing_) return {k, nullptr};
    used_ = true;
    return {{k.seed, k.draw - before_}, at()};
  }

  /// Draws count from `before` in what is captured from here on.
  void begin(std::uint64_t before) {
    capturing_ = true;
    used_ = false;
    before_ = before;
  }
  /// Returns: whether there were dropouts since begin().
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
