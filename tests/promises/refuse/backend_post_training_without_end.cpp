// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's post_training needs the form: void post_training(bool on)
#include "whole.hpp"

struct faulty : whole::capable_backend {
  void post_training() {}
};
static_assert(comp::expect_backend<faulty>());
