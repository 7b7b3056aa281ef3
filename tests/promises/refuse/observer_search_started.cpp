// SPDX-License-Identifier: Apache-2.0
// expect: an observer's search_started needs the form: void search_started(const comp::search_info&)
#include "whole.hpp"

struct faulty : whole::observer {
  void search_started() {}
};
static_assert(comp::expect_observer<faulty>());
