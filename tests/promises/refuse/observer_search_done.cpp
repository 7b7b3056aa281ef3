// SPDX-License-Identifier: Apache-2.0
// expect: an observer's search_done needs the form: void search_done(const comp::outcome&)
#include "whole.hpp"

struct faulty : whole::observer {
  void search_done(const comp::plan&) {}
};
static_assert(comp::expect_observer<faulty>());
