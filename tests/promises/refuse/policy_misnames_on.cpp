// SPDX-License-Identifier: Apache-2.0
// expect: an OperatorPolicy's on_machine, on_hardware or for_hardware is never called: name it on
#include "whole.hpp"

struct faulty : whole::policy {
  faulty on_machine(const comp::hardware&) const { return *this; }
};
static_assert(comp::expect_policy<faulty>());
