// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/stop_on_signal.hpp>
#include <csignal>

namespace {

struct sigaction handler_of(int signal) {
  struct sigaction now = {};
  sigaction(signal, nullptr, &now);
  return now;
}

stack_t stack_of_handlers() {
  stack_t now = {};
  sigaltstack(nullptr, &now);
  return now;
}

}  // namespace

TEST_CASE("the first signal asks to stop, the next one acts as before, and so do all once the object is gone") {
  const auto before = handler_of(SIGINT).sa_handler;
  {
    const comp::stop_on_signal signals;
    CHECK_FALSE(signals.stop_requested());
    CHECK_THROWS_WITH_AS(comp::stop_on_signal{},
                         "a second stop_on_signal was made (signal handlers belong to the process): use one",
                         comp::settings_error);
    std::raise(SIGTERM);
    CHECK(signals.stop_requested());
    CHECK(signals.signal() == SIGTERM);
    CHECK((handler_of(SIGTERM).sa_handler == SIG_DFL));
  }
  CHECK((handler_of(SIGINT).sa_handler == before));
  CHECK_FALSE(comp::stop_on_signal{}.stop_requested());
}

TEST_CASE("the handlers of signals run on a stack that no kernel uses") {
  const auto flags = stack_of_handlers().ss_flags;
  {
    const comp::stop_on_signal signals;
    for (const int signal : {SIGINT, SIGTERM}) CHECK((handler_of(signal).sa_flags & SA_ONSTACK) != 0);
    CHECK((stack_of_handlers().ss_flags & SS_DISABLE) == 0);
    std::raise(SIGINT);
    CHECK(signals.signal() == SIGINT);
  }
  CHECK(stack_of_handlers().ss_flags == flags);
}
