// SPDX-License-Identifier: Apache-2.0
// expect: an observer's recall needs the form: std::optional<comp::trial> recall(const comp::trial&)
#include "whole.hpp"

struct faulty : whole::observer {
  comp::trial recall(const comp::trial& wanted) { return wanted; }
};
static_assert(comp::expect_observer<faulty>());
