// SPDX-License-Identifier: Apache-2.0
// expect: an observer's trial_done needs the form: void or bool trial_done(const comp::trial&)
#include "whole.hpp"

struct faulty : whole::observer {
  int trial_done(const comp::trial&) { return 0; }
};
static_assert(comp::expect_observer<faulty>());
