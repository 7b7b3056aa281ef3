// SPDX-License-Identifier: Apache-2.0
// expect: an observer's trial_started needs the form: void trial_started(const comp::trial&)
#include "whole.hpp"

struct faulty : whole::observer {
  void trial_started(std::size_t) {}
};
static_assert(comp::expect_observer<faulty>());
