// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's validate needs the form: double validate()
#include "whole.hpp"

struct faulty : whole::capable_backend {
  float validate() { return 0; }
};
static_assert(comp::expect_backend<faulty>());
