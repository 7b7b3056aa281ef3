// SPDX-License-Identifier: Apache-2.0
// expect: a Backend needs: void set_precision(const comp::plan&)
#include "whole.hpp"

struct faulty : whole::backend {
  void set_precision(const std::string&) {}  // hides the right one
};
static_assert(comp::expect_backend<faulty>());
