// SPDX-License-Identifier: Apache-2.0
// expect: a SearchStrategy needs: run start(comp::search_space) const
#include "whole.hpp"

struct faulty : whole::strategy {
  whole::run start(comp::search_space) { return {}; }  // not const: a search would change its settings
};
static_assert(comp::expect_strategy<faulty>());
