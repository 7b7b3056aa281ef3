// SPDX-License-Identifier: Apache-2.0
// expect: a SearchStrategy's run needs: std::vector<comp::plan> ask(std::size_t at_most)
#include "whole.hpp"

struct faulty : whole::strategy {
  struct run : whole::run {
    comp::plan ask(std::size_t) { return {}; }
  };
  run start(comp::search_space) const { return {}; }
};
static_assert(comp::expect_strategy<faulty>());
