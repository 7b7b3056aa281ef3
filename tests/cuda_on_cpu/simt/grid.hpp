// SPDX-License-Identifier: Apache-2.0
// Runs a grid: block after block, the threads of a block as fibres, with CUDA's rules for waiting enforced strictly.
// A barrier has to be reached by every thread of the block, at the same line; a warp-wide call by every thread that its
// mask names. If a real device would hang or leave the result undefined, a `fault` names block, thread and line.
// Blocks run in order and threads in turns: what a result owes to another order is found by `order.hpp`, not by luck.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "threads.hpp"

namespace simt {

namespace detail {

/// Of literals, which mostly are the same one.
inline bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

/// Runs the thread until it waits or ends. Throws: what its kernel threw.
inline void step(thread& t, const std::function<void()>& body) {
  state.self = &t;
  threadIdx = t.index;
  if (!t.run) {
    t.run = fibre_pool::common().take();
    t.run->start(body);
  }
  t.run->resume();
  state.self = nullptr;
  if (!t.run->ended()) return;
  t.ended = true;
  const std::exception_ptr failure = t.run->failure();
  fibre_pool::common().give(std::move(t.run));
  if (failure) std::rethrow_exception(failure);
}
[[noreturn]] inline void deadlock(const std::string& what) {
  state.self = nullptr;
  fail(what);
}
inline std::string seen_at(const thread& t) {
  if (t.ended) return who(t) + " has ended";
  return who(t) + " waits in " + t.call + " at " + text(t.at);
}

/// True when all threads were at the barrier and go on.
inline bool release_barrier(block& b) {
  const thread* there = nullptr;
  for (const thread& t : b.threads) {
    if (t.state == waiting::barrier) there = there ? there : &t;
  }
  if (!there) return false;
  for (const thread& t : b.threads) {
    if (t.ended) deadlock("barrier not reached by all: " + seen_at(*there) + ", but " + seen_at(t));
    if (t.state != waiting::barrier) return false;
    if (t.at.line() != there->at.line() || !same(t.at.file_name(), there->at.file_name()) ||
        !same(t.call, there->call)) {
      deadlock("threads of one block at different barriers: " + seen_at(*there) + ", but " + seen_at(t));
    }
  }
  b.last_barrier = there->at;
  b.passed = true;
  ++b.epoch;
  for (thread& t : b.threads) t.state = waiting::no;
  return true;
}

/// The threads of t's warp that its mask names, null if the block has no such thread.
inline std::array<thread*, warp_size> named(block& b, const thread& t) {
  std::array<thread*, warp_size> lanes{};
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    const unsigned id = t.warp() * warp_size + lane;
    if ((t.mask >> lane & 1U) && id < b.threads.size()) lanes[lane] = &b.threads[id];
  }
  return lanes;
}
inline void publish(const std::array<thread*, warp_size>& lanes, bool orders_memory) {
  std::array<std::uint32_t, warp_size> all{};
  for (const thread* t : lanes) {
    for (unsigned i = 0; orders_memory && t && i < warp_size; ++i) all[i] = std::max(all[i], t->knows[i]);
  }
  for (thread* t : lanes) {
    if (!t) continue;
    t->taken = t->given;
    t->state = waiting::no;
    if (!orders_memory) continue;
    t->knows = all;
    ++t->knows[t->lane()];
  }
}
inline bool release_warp(block& b, thread& t) {
  const auto lanes = named(b, t);
  for (const thread* other : lanes) {
    if (!other) continue;
    if (other->ended)
      deadlock("warp-wide call not reached by all in its mask: " + seen_at(t) + ", but " + seen_at(*other));
    if (other->state != waiting::warp) return false;
    if (!same(other->call, t.call) || other->mask != t.mask) {
      deadlock("threads of one warp in different calls or with different masks: " + seen_at(t) + ", but " +
               seen_at(*other));
    }
  }
  publish(lanes, same(t.call, "__syncwarp"));  // alone of all warp-wide calls it orders memory
  return true;
}
inline bool release(block& b) {
  bool any = release_barrier(b);
  for (thread& t : b.threads) {
    if (t.state == waiting::warp) any |= release_warp(b, t);
  }
  return any;
}
[[noreturn]] inline void report_stuck(const block& b) {
  const thread* first = nullptr;
  for (const thread& t : b.threads) {
    if (t.ended) continue;
    if (!first) first = &t;
    if (t.state != first->state) deadlock("deadlock: " + seen_at(*first) + ", but " + seen_at(t));
  }
  deadlock("deadlock: " + seen_at(*first) + " and no other thread comes there");
}

inline void run_block(block& b, const std::function<void()>& body) {
  for (std::size_t left = b.threads.size(); left;) {
    bool ran = false;
    for (thread& t : b.threads) {
      if (t.state != waiting::no || t.ended) continue;
      step(t, body);
      ran = true;
      left -= t.ended;
    }
    if (!left) return;
    if (!release(b) && !ran) report_stuck(b);
  }
}
inline void abandon_all(block& b) {
  for (thread& t : b.threads) {
    if (!t.run) continue;
    state.self = &t;
    t.run->abandon();
    fibre_pool::common().give(std::move(t.run));
  }
  state.self = nullptr;
}
/// Those of a new block, before their first step.
inline std::span<thread> new_threads(dim3 per_block) {
  static std::vector<thread> kept;
  const unsigned count = per_block.x * per_block.y * per_block.z;
  if (kept.size() < count) kept.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    thread& t = kept[i];
    t.id = i;
    t.index = {i % per_block.x, i / per_block.x % per_block.y, i / per_block.x / per_block.y};
    t.ended = false;
    t.state = waiting::no;
    t.knows = {};
    t.knows[t.lane()] = 1;
  }
  return std::span{kept}.first(count);
}

}  // namespace detail

/// While one lives, of each grid only the blocks at its corners run, whose numbers are the first or the last along each
/// axis. For grids that are too large to run whole: what is wrong with large numbers shows there.
struct only_corners_run {
  inline static bool now = false;
  only_corners_run() { now = true; }
  only_corners_run(const only_corners_run&) = delete;
  only_corners_run& operator=(const only_corners_run&) = delete;
  ~only_corners_run() { now = false; }
};

/// Runs `body` once for each thread. Throws: fault for a broken rule; whatever else the kernel throws.
inline void run_grid(dim3 grid, dim3 per_block, std::size_t shared_bytes, const place& at,
                     const std::function<void()>& body) {
  const std::uint64_t threads = std::uint64_t{per_block.x} * per_block.y * per_block.z;
  state.launched = at;
  if (state.in) throw fault{"a kernel was launched from inside a kernel"};
  if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || grid.x > 2147483647U || !threads ||
      threads > 1024 || per_block.z > 64 || shared_bytes > 227 * 1024) {
    fail("invalid configuration: grid " + text(uint3{grid.x, grid.y, grid.z}) + ", block " +
         text(uint3{per_block.x, per_block.y, per_block.z}) + ", " + std::to_string(shared_bytes) + " shared bytes");
  }
  ++state.launches;
  gridDim = grid;
  blockDim = per_block;
  const auto next = [](unsigned i, unsigned size) { return only_corners_run::now && i + 1 < size ? size - 1 : i + 1; };
  for (unsigned z = 0; z < grid.z; z = next(z, grid.z)) {
    for (unsigned y = 0; y < grid.y; y = next(y, grid.y)) {
      for (unsigned x = 0; x < grid.x; x = next(x, grid.x)) {
        block b;
        b.index = blockIdx = {x, y, z};
        b.serial = ++state.blocks;
        b.threads = detail::new_threads(per_block);
        state.in = &b;
        try {
          detail::run_block(b, body);
        } catch (...) {
          detail::abandon_all(b);
          state.in = nullptr;
          throw;
        }
        state.in = nullptr;
      }
    }
  }
}

}  // namespace simt
