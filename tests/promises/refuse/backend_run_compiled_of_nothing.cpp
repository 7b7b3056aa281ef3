// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's run_compiled needs the form: bool run_compiled(bool on)
#include "whole.hpp"

struct faulty : whole::capable_backend {
  void run_compiled(bool) {}
};
static_assert(comp::expect_backend<faulty>());
