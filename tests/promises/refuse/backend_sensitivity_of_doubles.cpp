// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's sensitivity needs the form: std::vector<comp::op_error> sensitivity(comp::precision)
#include "whole.hpp"

struct faulty : whole::capable_backend {
  std::vector<double> sensitivity(comp::precision) { return {}; }
};
static_assert(comp::expect_backend<faulty>());
