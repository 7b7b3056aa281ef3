// SPDX-License-Identifier: Apache-2.0
// expect: an observer's stop_requested needs the form: bool stop_requested()
#include "whole.hpp"

struct faulty : whole::observer {
  void stop_requested() {}
};
static_assert(comp::expect_observer<faulty>());
