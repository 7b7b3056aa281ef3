// SPDX-License-Identifier: Apache-2.0
// expect: an observer's batch_done needs the form: void batch_done(const comp::trial&, const comp::sample&)
#include "whole.hpp"

struct faulty : whole::observer {
  void batch_done(const comp::trial&, float) {}
};
static_assert(comp::expect_observer<faulty>());
