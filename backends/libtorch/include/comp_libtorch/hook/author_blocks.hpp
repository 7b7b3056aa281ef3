// SPDX-License-Identifier: Apache-2.0
// Finds the blocks of a model whose author decided on precisions: `with torch.autocast(device, enabled=False)` around a
// rotary embedding, a softmax or a loss, and an autocast of the model's own to some format. No plan changes what the
// operators in them compute in.
// A block shows in the autocast state of the thread, compared with the state at the beginning of the region: autocast
// is on for the device, or it is off and nested deeper. torch.autocast and autocast_guard count the nesting. Not seen:
// set_autocast_enabled(device, false) without increment_nesting(), which changes nothing in that state; blocks of
// scripted modules, which TorchScript compiles away; blocks that replace others which were open before the region.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <comp/core/op_info.hpp>
#include <comp_libtorch/hook/listener.hpp>

namespace comp::libtorch::detail {

class author_blocks {
 public:
  /// For the region that begins here, on this thread.
  explicit author_blocks(at::DeviceType device)
      : device_{device}, autocast_{at::autocast::get_autocast_dispatch_key_from_device_type(device)} {
    begin();
  }
  /// The thread's present state counts as that outside of every block.
  void begin() {
    was_on_ = is_on();
    depth_ = depth();
    others_ = others_on();
  }
  bool is_on() const { return !c10::impl::tls_local_dispatch_key_set().excluded_.has(autocast_); }

  /// Returns: what the model's author chose for the operators of the code that runs now.
  author_choice now() const {
    const int deeper = depth() - depth_;
    if (is_on()) return deeper > 0 || !was_on_ ? author_choice::autocast_on : outer_;
    return deeper > 0 && deeper > others_on() - others_ ? author_choice::autocast_off : outer_;
  }
  /// The region runs a part of another region again, which stood in the block `outer` there.
  void begin_in(author_choice outer) { outer_ = outer; }

 private:
  /// Returns: how deep autocast is nested. LibTorch tells it only when it changes it.
  static int depth() {
    at::autocast::increment_nesting();
    return at::autocast::decrement_nesting();
  }
  /// Returns: how many other devices have autocast on. Each nests one level deeper and says nothing of this device.
  int others_on() const {
    return static_cast<int>(std::ranges::count_if(at::autocast::_AUTOCAST_SUPPORTED_DEVICES, [&](at::DeviceType d) {
      return d != device_ && !claimed_keys.has(at::autocast::get_autocast_dispatch_key_from_device_type(d)) &&
             at::autocast::is_autocast_enabled(d);
    }));
  }

  at::DeviceType device_;
  c10::DispatchKey autocast_;
  bool was_on_ = false;
  int depth_ = 0;
  int others_ = 0;
  author_choice outer_ = author_choice::none;
};

}  // namespace comp::libtorch::detail
