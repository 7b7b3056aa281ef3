// SPDX-License-Identifier: Apache-2.0
// expect: an observer's warned needs the form: void warned(const std::string&)
#include "whole.hpp"

struct faulty : whole::observer {
  void warned(int) {}
};
static_assert(comp::expect_observer<faulty>());
