// SPDX-License-Identifier: Apache-2.0
// What a running thread does to wait: for its block, or for lanes of its warp, giving and taking a value of 16 bytes.
#pragma once

#include <cstring>
#include <type_traits>

#include "grid.hpp"

namespace simt {

/// The thread waits for the whole block.
inline void wait_for_block(const char* call, const place& at) {
  thread& t = self();
  t.state = waiting::barrier;
  t.call = call;
  t.at = at;
  t.wait();
}
/// The thread waits for the lanes in `mask`, giving `value` to them. Afterwards lane_value() reads theirs.
template <class T>
void wait_for_warp(const char* call, unsigned mask, const T& value, const place& at) {
  static_assert(sizeof(T) <= 16 && std::is_trivially_copyable_v<T>);
  thread& t = self();
  if (!(mask >> t.lane() & 1U)) fail(std::string{call} + " at " + text(at) + " with a mask that leaves out the caller");
  t.state = waiting::warp;
  t.call = call;
  t.at = at;
  t.mask = mask;
  std::memcpy(t.given.data(), &value, sizeof(T));
  t.wait();
}
/// What `lane` gave in the call that just ended.
template <class T>
T lane_value(unsigned lane, const char* call, const place& at) {
  const thread& t = self();
  const unsigned id = t.warp() * warp_size + lane;
  if (!(t.mask >> lane & 1U) || id >= state.in->threads.size()) {
    fail(std::string{call} + " at " + text(at) + " reads lane " + std::to_string(lane) + ", which takes no part");
  }
  T value;
  std::memcpy(&value, state.in->threads[id].taken.data(), sizeof(T));
  return value;
}

}  // namespace simt
