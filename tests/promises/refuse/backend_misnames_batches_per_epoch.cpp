// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's batches_in_epoch, steps_per_epoch or batchesPerEpoch is never called: name it batches_per_epoch
#include "whole.hpp"

struct faulty : whole::backend {
  std::size_t batches_in_epoch() const { return 20; }
};
static_assert(comp::expect_backend<faulty>());
