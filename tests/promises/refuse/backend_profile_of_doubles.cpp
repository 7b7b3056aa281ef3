// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's profile needs the form: std::vector<comp::op_time> profile()
#include "whole.hpp"

struct faulty : whole::capable_backend {
  std::vector<double> profile() { return {}; }
};
static_assert(comp::expect_backend<faulty>());
