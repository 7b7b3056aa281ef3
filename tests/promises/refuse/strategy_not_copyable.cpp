// SPDX-License-Identifier: Apache-2.0
// expect: a SearchStrategy needs: settings that are copyable
#include "whole.hpp"

struct faulty : whole::strategy {
  faulty(const faulty&) = delete;
};
static_assert(comp::expect_strategy<faulty>());
