// SPDX-License-Identifier: Apache-2.0
// expect: an observer's training_progressed needs the form: void training_progressed(const comp::training_progress&)
#include "whole.hpp"

struct faulty : whole::observer {
  void training_progressed(std::size_t) {}
};
static_assert(comp::expect_observer<faulty>());
