// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's perturb needs the form: void perturb(std::uint64_t seed)
#include "whole.hpp"

struct faulty : whole::capable_backend {
  void perturb() {}
};
static_assert(comp::expect_backend<faulty>());
