// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's execution needs the form: comp::execution execution()
#include "whole.hpp"

struct faulty : whole::capable_backend {
  std::string execution() { return {}; }
};
static_assert(comp::expect_backend<faulty>());
