// SPDX-License-Identifier: Apache-2.0
// Which work of streams is ordered, and a report of accesses to one memory that are not: a wait that is missing, even
// if the stand-in happened to run the work in the right order.
// Order comes from the calls alone: a stream keeps its own, an event carries that of its stream to whom waits for it,
// what the host has waited for comes before all that it gives later. An allocation is looked at as a whole: two parts
// of one that two streams use at once count as one memory. Source: vector clocks, as in Flanagan and Freund 2009.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "threads.hpp"

namespace simt {

/// How many works of each line come before.
using line_clock = std::map<std::uint64_t, std::uint64_t>;
inline void join(line_clock& to, const line_clock& from) {
  for (const auto& [line, tick] : from) {
    auto& known = to[line];
    known = std::max(known, tick);
  }
}
inline bool covers(const line_clock& all, std::uint64_t line, std::uint64_t tick) {
  const auto known = all.find(line);
  return known != all.end() && known->second >= tick;
}

/// What a message calls a piece of work.
struct work_name {
  const char* what = "a library's work";
  place at = {};  // of kernels
  std::string text() const { return at.line() ? what + (" launched at " + simt::text(at)) : what; }
};
/// One piece of work. serial: of all that ever ran; 0: none is running.
struct work_point {
  std::uint64_t line = 0, tick = 0, serial = 0;
  std::shared_ptr<const line_clock> knows = nullptr;
  work_name name = {};
};
inline work_point now_runs;
inline std::uint64_t lines_made = 0, works_made = 0;
inline const auto nothing_known = std::make_shared<const line_clock>();

/// Works that run one after another: those of a stream. The host has no works, but knows those that it has waited for.
struct work_line {
  std::uint64_t line = ++lines_made, tick = 0;
  std::shared_ptr<const line_clock> knows = nothing_known;

  void wait_for(const line_clock& all) {
    bool known = true;
    for (const auto& [other, until] : all) known = known && covers(*knows, other, until);
    if (known) return;
    line_clock more = *knows;
    join(more, all);
    knows = std::make_shared<line_clock>(std::move(more));
  }
  void wait_for(const work_line& other) {
    wait_for(*other.knows);
    if (other.tick) wait_for({{other.line, other.tick}});
  }
  /// All that comes before what is given next.
  line_clock end() const {
    line_clock all = *knows;
    if (tick) all[line] = tick;
    return all;
  }
  work_point next(const work_name& name) { return {line, ++tick, ++works_made, knows, name}; }
};

/// Who has used one memory: the last write, and the last read of each line since.
class stream_history {
 public:
  /// Throws: fault if an earlier use and this one have no order and one of them writes.
  void touch(const work_point& by, bool writes) {
    if (!by.serial || by.serial == writer_ || (!writes && by.serial == reader_)) return;
    if (writer_) require_ordered(written_, "written", by, writes);
    if (writes) {
      for (const used& read : reads_) require_ordered(read, "read", by, writes);
      reads_.clear();
      written_ = {by.line, by.tick, by.name};
      writer_ = by.serial;
      return;
    }
    reader_ = by.serial;
    for (used& read : reads_) {
      if (read.line == by.line) return void(read = {by.line, by.tick, by.name});
    }
    reads_.push_back({by.line, by.tick, by.name});
  }

 private:
  struct used {
    std::uint64_t line = 0, tick = 0;
    work_name name = {};
  };
  static void require_ordered(const used& before, const char* then, const work_point& by, bool writes) {
    if (before.line == by.line || covers(*by.knows, before.line, before.tick)) return;
    throw fault{"no order between streams: memory is " + std::string{writes ? "written" : "read"} + " by " +
                by.name.text() + " and " + then + " by " + before.name.text() +
                ", and neither waits for the other: record an event behind the first and wait for it"};
  }
  std::uint64_t writer_ = 0, reader_ = 0;  // serials: most accesses are of the work that was here last
  used written_;
  std::vector<used> reads_;
};

/// Pinned memory, whose writes by the host nobody sees: what copies are to send is compared with what they find.
struct pinned_history : stream_history {
  struct sent {
    const unsigned char* from;
    std::size_t bytes;
    std::uint64_t sum, line, tick;
  };
  std::vector<sent> on_the_way;  // copies that the host has not waited for

  static std::uint64_t sum_of(const unsigned char* from, std::size_t bytes) {
    std::uint64_t sum = bytes;
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, from + i, 8);
      sum = (sum ^ word) * 0x9E3779B97F4A7C15U;
      sum ^= sum >> 32;
    }
    for (std::size_t i = bytes / 8 * 8; i < bytes; ++i) sum = (sum ^ from[i]) * 0x100000001B3U;
    return sum;
  }
  static void require_same(const unsigned char* from, std::size_t bytes, std::uint64_t sum) {
    if (sum_of(from, bytes) == sum) return;
    throw fault{"pinned memory is written while a copy reads it: let the host wait for the copy first"};
  }
  /// Of copies that were given before and that the host, which `knows` so much, has not waited for.
  void check(const line_clock& knows) {
    std::erase_if(on_the_way, [&](const sent& one) { return covers(knows, one.line, one.tick); });
    for (const sent& one : on_the_way) require_same(one.from, one.bytes, one.sum);
  }
};

}  // namespace simt
