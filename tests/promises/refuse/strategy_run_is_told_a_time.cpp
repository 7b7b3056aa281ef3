// SPDX-License-Identifier: Apache-2.0
// expect: a SearchStrategy's run needs: void tell(const comp::trial&)
#include "whole.hpp"

struct faulty : whole::strategy {
  struct run : whole::run {
    void tell(double) {}
  };
  run start(comp::search_space) const { return {}; }
};
static_assert(comp::expect_strategy<faulty>());
