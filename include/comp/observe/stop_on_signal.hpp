// SPDX-License-Identifier: Apache-2.0
// An observer that lets Ctrl-C end a search in good order: once SIGINT, SIGTERM or SIGHUP has come, it asks the search
// to stop. The search then puts the trainer's state back and throws comp::interrupted, and a ledger has every finished
// run.
// A second signal acts as it would without this object, so that a backend that hangs can still be ended. A SIGHUP that
// is ignored, as under nohup, stays ignored. A process can have one stop_on_signal at a time, because signal handlers
// belong to the process.
// The handler has a stack of its own: kernels that oneDNN 2.6 makes for AVX2 let the stack pointer into their working
// memory, and what the system writes there for a handler damaged the heap (two of 24 interrupted searches died).
#pragma once

#include <array>
#include <comp/core/error.hpp>
#include <csignal>
#include <cstddef>

namespace comp {

class stop_on_signal {
 public:
  /// Throws: `settings_error` if the process has a stop_on_signal already.
  stop_on_signal() {
    require<settings_error>(!alive_,
                            "a second stop_on_signal was made (signal handlers belong to the process): use one");
    alive_ = true;
    caught_ = 0;
    stack_t own = {};
    own.ss_sp = stack_.data();
    own.ss_size = stack_.size();
    sigaltstack(nullptr, &stack_before_);
    if (stack_before_.ss_flags & SS_DISABLE) sigaltstack(&own, nullptr);
    struct sigaction action = {};
    action.sa_handler = [](int signal) { caught_ = signal; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_ONSTACK);
    sigaction(SIGINT, &action, &interrupt_before_);
    sigaction(SIGTERM, &action, &terminate_before_);
    sigaction(SIGHUP, nullptr, &hang_up_before_);
    if (hang_up_before_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  }
  stop_on_signal(const stop_on_signal&) = delete;
  stop_on_signal& operator=(const stop_on_signal&) = delete;
  ~stop_on_signal() {
    sigaction(SIGINT, &interrupt_before_, nullptr);
    sigaction(SIGTERM, &terminate_before_, nullptr);
    sigaction(SIGHUP, &hang_up_before_, nullptr);
    if (stack_before_.ss_flags & SS_DISABLE) sigaltstack(&stack_before_, nullptr);
    alive_ = false;
  }

  bool stop_requested() const { return caught_ != 0; }
  /// Returns the signal that came; 0: none.
  int signal() const { return caught_; }

 private:
  inline static volatile std::sig_atomic_t caught_ = 0;
  inline static bool alive_ = false;
  inline static std::array<std::byte, 64 * 1024> stack_;  // the registers of AMX alone take 8 KiB of it
  stack_t stack_before_ = {};
  struct sigaction interrupt_before_ = {};
  struct sigaction terminate_before_ = {};
  struct sigaction hang_up_before_ = {};
};

}  // namespace comp
