// SPDX-License-Identifier: Apache-2.0
// Which accesses to memory are ordered, and a report of those that are not: the race check.
// An access happens before another of the same launch when one thread makes both, a barrier of their block lies
// between, or a __syncwarp (directly or through others) connects their lanes. Shuffles and ballots order nothing, nor
// do blocks. So a race is found whatever order the fibres ran in. Source: vector clocks, as in Flanagan and Freund
// 2009.
#pragma once

#include <string>
#include <vector>

#include "grid.hpp"

namespace simt {

struct access {
  std::uint64_t launch = 0, block = 0;
  std::uint32_t epoch = 0, clock = 0, thread = 0;
  bool atomic = false;
};
inline access this_access(bool atomic = false) {
  const simt::thread& t = self();
  return {state.launches, state.in->serial, state.in->epoch, t.knows[t.lane()], t.id, atomic};
}
/// True when `earlier` happens before what the running thread does now.
inline bool ordered(const access& earlier) {
  if (earlier.launch != state.launches) return true;
  if (earlier.block != state.in->serial) return false;
  const thread& t = self();
  if (earlier.thread == t.id || earlier.epoch < state.in->epoch) return true;
  return earlier.thread / warp_size == t.warp() && t.knows[earlier.thread % warp_size] >= earlier.clock;
}
inline std::string text(const access& a) {
  if (a.block != state.in->serial) return "a thread of another block";
  return who(state.in->threads[a.thread]);
}

/// The history of one location. A full one keeps readers of two warps at least: a writer can be ordered with one only.
class history {
 public:
  void read(const auto& name) {
    if (written_.launch && !ordered(written_)) race(name, "read", "written", written_);
    const access now = this_access();
    for (access& old : readers_) {
      if (ordered(old)) {
        old = now;
        return;
      }
    }
    if (readers_.size() < 2 * warp_size) readers_.push_back(now);
  }
  void write(const auto& name, bool atomic = false) {
    const bool both_atomic = atomic && written_.atomic;
    if (written_.launch && !both_atomic && !ordered(written_)) race(name, verb(atomic), "written", written_);
    for (const access& old : readers_) {
      if (!ordered(old)) race(name, verb(atomic), "read", old);
    }
    readers_.clear();
    written_ = this_access(atomic);
  }

 private:
  static const char* verb(bool atomic) { return atomic ? "updated atomically" : "written"; }
  [[noreturn]] static void race(const auto& name, const char* now, const char* then, const access& other) {
    fail("race: " + name() + " is " + now + " here and " + then + " by " + text(other) + " with no barrier between");
  }
  access written_;
  std::vector<access> readers_;
};

}  // namespace simt
