// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's own_autocast needs the form: comp::plan own_autocast(comp::precision low)
#include "whole.hpp"

struct faulty : whole::capable_backend {
  comp::plan own_autocast() { return {}; }
};
static_assert(comp::expect_backend<faulty>());
