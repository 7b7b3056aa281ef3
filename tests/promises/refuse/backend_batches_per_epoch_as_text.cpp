// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's batches_per_epoch needs the form: std::uint64_t batches_per_epoch() const
#include "whole.hpp"

struct faulty : whole::capable_backend {
  std::string batches_per_epoch() const { return {}; }
};
static_assert(comp::expect_backend<faulty>());
