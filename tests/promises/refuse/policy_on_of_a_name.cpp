// SPDX-License-Identifier: Apache-2.0
// expect: an OperatorPolicy's on needs the form: its own type on(const comp::hardware&) const
#include "whole.hpp"

struct faulty : whole::policy {
  faulty on(const char*) const { return {}; }
};
static_assert(comp::expect_policy<faulty>());
