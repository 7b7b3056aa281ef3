// SPDX-License-Identifier: Apache-2.0
// Guards that have the operators of a thread come to a listener.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <comp_libtorch/hook/listener.hpp>
#include <utility>

namespace comp::libtorch::detail {

/// While it lives, `key` is on for this thread. Its end restores exactly what was before, so guards nest.
class key_guard {
 public:
  explicit key_guard(c10::DispatchKey key)
      : key_{key},
        was_included_{c10::impl::tls_is_dispatch_key_included(key_)},
        was_excluded_{c10::impl::tls_is_dispatch_key_excluded(key_)} {
    c10::impl::tls_set_dispatch_key_excluded(key_, false);
    c10::impl::tls_set_dispatch_key_included(key_, true);
  }
  ~key_guard() {
    c10::impl::tls_set_dispatch_key_included(key_, was_included_);
    c10::impl::tls_set_dispatch_key_excluded(key_, was_excluded_);
  }
  key_guard(const key_guard&) = delete;
  key_guard& operator=(const key_guard&) = delete;

 private:
  c10::DispatchKey key_;
  bool was_included_;
  bool was_excluded_;
};

/// While it lives, the operators of this thread go to `to`. Requires: a region was opened before, by this thread or
/// another one: the first registers the key.
class listening_guard {
 public:
  explicit listening_guard(listener* to)
      : key_{claimed_key},
        before_{std::exchange(listening, to)},
        before_in_{std::exchange(listening_in, torch::autograd::get_current_node().get())} {}
  ~listening_guard() {
    listening = before_;
    listening_in = before_in_;
  }
  listening_guard(const listening_guard&) = delete;
  listening_guard& operator=(const listening_guard&) = delete;

 private:
  key_guard key_;
  listener* before_;
  const torch::autograd::Node* before_in_;
};

}  // namespace comp::libtorch::detail
