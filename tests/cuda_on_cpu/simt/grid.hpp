// SPDX-License-Identifier: Apache-2.0
// Runs a grid: block after block, the threads of a block as fibres, with CUDA's rules for waiting enforced strictly.
// A barrier has to be reached by every thread of the block, at the same line; a warp-wide call by every thread that its
// mask names. Where a real device would hang or leave the result undefined, a `fault` names block, thread and line.
// Blocks run in order and threads in turns: what a result owes to another order is found by `order.hpp`, not by luck.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fibres.hpp"
#include "vectors.hpp"

namespace simt {

/// A kernel broke a rule; what() names the launch, block, thread and line.
struct fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr unsigned warp_size = 32;
enum class waiting : std::uint8_t { no, barrier, warp };
using place = std::source_location;

struct thread {
  thread(unsigned number, uint3 at, std::function<void()> body) : id{number}, index{at}, run{std::move(body)} {}
  unsigned lane() const { return id % warp_size; }
  unsigned warp() const { return id / warp_size; }

  unsigned id;
  uint3 index;
  fibre run;
  waiting state = waiting::no;
  const char* call = "";  // what it waits in
  place at;
  unsigned mask = 0;
  bool vote = false;                               // of barriers and ballots
  std::array<unsigned char, 16> given{}, taken{};  // of shuffles: this lane's value, and the published one
  std::array<std::uint32_t, warp_size> knows{};    // how far this lane has seen each lane of its warp, see order.hpp
};

struct block {
  uint3 index;
  std::uint64_t serial = 0;  // of all blocks ever run: memory left from another block is told apart by it
  std::uint32_t epoch = 1;   // counts the barriers passed
  place last_barrier;
  bool passed = false;
  std::vector<std::unique_ptr<thread>> threads;
  unsigned counted = 0;  // votes of the last barrier
};

struct machine {
  std::uint64_t launches = 0, blocks = 0;
  std::size_t shared_bytes = 0;  // dynamic, of the running launch
  place launched;
  block* in = nullptr;
  thread* self = nullptr;
};
inline machine state;

inline std::string text(const place& p) {
  const std::string file = p.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(p.line());
}
inline std::string text(const uint3& i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}
inline std::string who(const thread& t) { return "thread " + text(t.index); }
inline std::string where() {
  std::string s = "kernel launched at " + text(state.launched);
  if (state.in) s += ", block " + text(state.in->index);
  if (state.self) s += ", " + who(*state.self);
  if (state.in && state.in->passed) s += ", after the barrier at " + text(state.in->last_barrier);
  return s;
}
[[noreturn]] inline void fail(const std::string& what) { throw fault{where() + ": " + what}; }

inline thread& self() {
  if (!state.self) throw fault{"a device function was called outside a kernel"};
  return *state.self;
}

namespace detail {

inline void start(thread& t) {
  state.self = &t;
  threadIdx = t.index;
  t.run.resume();
  state.self = nullptr;
}
[[noreturn]] inline void deadlock(const std::string& what) {
  state.self = nullptr;
  fail(what);
}
inline std::string seen_at(const thread& t) {
  if (t.run.ended()) return who(t) + " has ended";
  return who(t) + " waits in " + t.call + " at " + text(t.at);
}

/// True when all threads were at the barrier and go on.
inline bool release_barrier(block& b) {
  const thread* there = nullptr;
  for (const auto& t : b.threads) {
    if (t->state == waiting::barrier) there = there ? there : t.get();
  }
  if (!there) return false;
  for (const auto& t : b.threads) {
    if (t->run.ended()) deadlock("barrier not reached by all: " + seen_at(*there) + ", but " + seen_at(*t));
    if (t->state != waiting::barrier) return false;
    if (t->at.line() != there->at.line() || std::strcmp(t->at.file_name(), there->at.file_name()) != 0 ||
        std::strcmp(t->call, there->call) != 0) {
      deadlock("threads of one block at different barriers: " + seen_at(*there) + ", but " + seen_at(*t));
    }
  }
  b.counted = 0;
  for (const auto& t : b.threads) b.counted += t->vote;
  b.last_barrier = there->at;
  b.passed = true;
  ++b.epoch;
  for (const auto& t : b.threads) t->state = waiting::no;
  return true;
}

/// The threads of t's warp that its mask names, null where the block has no such thread.
inline std::array<thread*, warp_size> named(block& b, const thread& t) {
  std::array<thread*, warp_size> lanes{};
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    const unsigned id = t.warp() * warp_size + lane;
    if ((t.mask >> lane & 1U) && id < b.threads.size()) lanes[lane] = b.threads[id].get();
  }
  return lanes;
}
inline void publish(const std::array<thread*, warp_size>& lanes) {
  std::array<std::uint32_t, warp_size> all{};
  for (const thread* t : lanes) {
    for (unsigned i = 0; t && i < warp_size; ++i) all[i] = std::max(all[i], t->knows[i]);
  }
  for (thread* t : lanes) {
    if (!t) continue;
    t->taken = t->given;
    t->state = waiting::no;
    if (std::strcmp(t->call, "__syncwarp") != 0) continue;  // alone of all warp-wide calls it orders memory
    t->knows = all;
    ++t->knows[t->lane()];
  }
}
inline bool release_warp(block& b, thread& t) {
  const auto lanes = named(b, t);
  for (const thread* other : lanes) {
    if (!other) continue;
    if (other->run.ended())
      deadlock("warp-wide call not reached by all in its mask: " + seen_at(t) + ", but " + seen_at(*other));
    if (other->state != waiting::warp) return false;
    if (std::strcmp(other->call, t.call) != 0 || other->mask != t.mask) {
      deadlock("threads of one warp in different calls or with different masks: " + seen_at(t) + ", but " +
               seen_at(*other));
    }
  }
  publish(lanes);
  return true;
}
inline bool release(block& b) {
  bool any = release_barrier(b);
  for (const auto& t : b.threads) {
    if (t->state == waiting::warp) any |= release_warp(b, *t);
  }
  return any;
}
[[noreturn]] inline void report_stuck(const block& b) {
  const thread* first = nullptr;
  for (const auto& t : b.threads) {
    if (t->run.ended()) continue;
    if (!first) first = t.get();
    if (t->state != first->state) deadlock("deadlock: " + seen_at(*first) + ", but " + seen_at(*t));
  }
  deadlock("deadlock: " + seen_at(*first) + " and no other thread comes there");
}

inline void run_block(block& b) {
  for (std::size_t left = b.threads.size(); left;) {
    bool ran = false;
    for (const auto& t : b.threads) {
      if (t->state != waiting::no || t->run.ended()) continue;
      start(*t);
      ran = true;
      left -= t->run.ended();
      if (t->run.failure()) std::rethrow_exception(t->run.failure());
    }
    if (!release(b) && !ran && left) report_stuck(b);
  }
}
inline void abandon_all(block& b) {
  for (const auto& t : b.threads) {
    state.self = t.get();
    t->run.abandon();
  }
  state.self = nullptr;
}

}  // namespace detail

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
  state.shared_bytes = shared_bytes;
  gridDim = grid;
  blockDim = per_block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block b;
        b.index = blockIdx = {x, y, z};
        b.serial = ++state.blocks;
        for (unsigned i = 0; i < threads; ++i) {
          b.threads.push_back(std::make_unique<thread>(
              i, uint3{i % per_block.x, i / per_block.x % per_block.y, i / per_block.x / per_block.y}, body));
          b.threads.back()->knows[i % warp_size] = 1;
        }
        state.in = &b;
        try {
          detail::run_block(b);
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
