// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's hardware needs the form: comp::hardware hardware() const
#include "whole.hpp"

struct faulty : whole::capable_backend {
  std::string hardware() const { return "H200"; }
};
static_assert(comp::expect_backend<faulty>());
