// SPDX-License-Identifier: Apache-2.0
// expect: a Backend that saves needs both: state save() and void restore(const state&)
#include "whole.hpp"

struct faulty : whole::backend {
  int save() const { return 0; }
};
static_assert(comp::expect_backend<faulty>());
