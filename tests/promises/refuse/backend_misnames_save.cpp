// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's save_state and restore_state (or load_state) are never called: name them save and restore
#include "whole.hpp"

struct faulty : whole::backend {
  int save_state() const { return 0; }
  void restore_state(const int&) {}
};
static_assert(comp::expect_backend<faulty>());
