// SPDX-License-Identifier: Apache-2.0
// expect: a Backend that saves needs both: state save() and void restore(const state&)
#include "whole.hpp"

struct faulty : whole::capable_backend {
  void restore(const std::string&) {}  // save() gives an int
};
static_assert(comp::expect_backend<faulty>());
