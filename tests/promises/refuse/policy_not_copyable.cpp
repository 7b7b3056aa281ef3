// SPDX-License-Identifier: Apache-2.0
// expect: an OperatorPolicy needs: to be copyable
#include "whole.hpp"

struct faulty : whole::policy {
  faulty(const faulty&) = delete;
};
static_assert(comp::expect_policy<faulty>());
