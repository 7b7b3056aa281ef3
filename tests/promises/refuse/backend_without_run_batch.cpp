// SPDX-License-Identifier: Apache-2.0
// expect: a Backend needs: comp::sample run_batch()
#include "whole.hpp"

struct faulty : whole::backend {
  void run_batch() = delete;
};
static_assert(comp::expect_backend<faulty>());
