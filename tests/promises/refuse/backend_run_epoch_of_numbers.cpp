// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's second run_epoch needs the form: comp::sample run_epoch(const comp::stop_predicate&)
#include "whole.hpp"

struct faulty : whole::backend {
  using whole::backend::run_epoch;
  comp::sample run_epoch(const std::function<bool(double)>&) { return {}; }
};
static_assert(comp::expect_backend<faulty>());
