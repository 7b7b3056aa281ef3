// SPDX-License-Identifier: Apache-2.0
// Blocks of a model's code for which its author decided on precisions: `with torch.autocast(device, enabled=False)`
// around a rotary embedding, a softmax or a loss, and an autocast of the model's own to some format. What the operators
// in them compute in is no plan's choice.
// A block shows in LibTorch's state of the thread, held against what that was when the region began: autocast is on for
// the device, or it is off and nested deeper, which torch.autocast and autocast_guard count. Not seen:
// set_autocast_enabled(device, false) without increment_nesting(), for it changes nothing there; blocks of scripted
// modules, which TorchScript compiles away; blocks in place of others that were open before the region began.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <comp/core/op_info.hpp>
#include <comp_libtorch/hook/listener.hpp>

namespace comp::libtorch::detail {

class author_blocks {
 public:
  /// Of the region that begins here, on this thread.
  explicit author_blocks(at::DeviceType device)
      : device_{device}, autocast_{at::autocast::get_autocast_dispatch_key_from_device_type(device)} {
    begin();
  }
  /// The state of the thread is what a region begins with.
  void begin() {
    was_on_ = is_on();
    depth_ = depth();
    others_ = others_on();
  }
  bool is_on() const { return !c10::impl::tls_local_dispatch_key_set().excluded_.has(autocast_); }

  /// What the author of the code that runs now says of its operators.
  author_choice now() const {
    const int deeper = depth() - depth_;
    if (is_on()) return deeper > 0 || !was_on_ ? author_choice::autocast_on : outer_;
    return deeper > 0 && deeper > others_on() - others_ ? author_choice::autocast_off : outer_;
  }
  /// The region is a part of another that is run again, in a block of it.
  void begin_in(author_choice outer) { outer_ = outer; }

 private:
  static int depth() {
    at::autocast::increment_nesting();
    return at::autocast::decrement_nesting();
  }
  /// Devices that are not the region's, whose autocast nests without saying anything of this one.
  int others_on() const {
    return static_cast<int>(std::ranges::count_if(at::autocast::_AUTOCAST_SUPPORTED_DEVICES, [&](at::DeviceType d) {
      return d != device_ && at::autocast::get_autocast_dispatch_key_from_device_type(d) != claimed_key &&
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
