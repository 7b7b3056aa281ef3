// SPDX-License-Identifier: Apache-2.0
// expect: an observer's search_finished, search_ended or on_search_done is never called: name it search_done
#include "whole.hpp"

struct faulty {
  void on_search_done(const comp::outcome&) {}
};
static_assert(comp::expect_observer<faulty>());
