// SPDX-License-Identifier: Apache-2.0
// expect: a Backend needs: comp::sample run_epoch()
#include "whole.hpp"

struct faulty : whole::backend {
  double run_epoch() { return 0; }  // a number cannot say "out of memory"
};
static_assert(comp::expect_backend<faulty>());
