// SPDX-License-Identifier: Apache-2.0
// The threads of the block that runs: what each is about, and the sentence of a fault, which names launch, block and
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>

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
  unsigned lane() const { return id % warp_size; }
  unsigned warp() const { return id / warp_size; }
  void wait() const { run->wait(); }

  unsigned id = 0;
  uint3 index;
  std::unique_ptr<fibre> run;  // from its first step to its end
  bool ended = false;
  waiting state = waiting::no;
  const char* call = "";  // what it waits in
  place at;
  unsigned mask = 0;
  std::array<unsigned char, 16> given{}, taken{};  // of shuffles: this lane's value, and the published one
  std::array<std::uint32_t, warp_size> knows{};    // how far this lane has seen each lane of its warp, see order.hpp
};

struct block {
  uint3 index;
  std::uint64_t serial = 0;  // of all blocks ever run: memory left from another block is told apart by it
  std::uint32_t epoch = 1;   // counts the barriers passed
  place last_barrier;
  bool passed = false;
  std::span<thread> threads;
};

struct machine {
  std::uint64_t launches = 0, blocks = 0;
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

}  // namespace simt
