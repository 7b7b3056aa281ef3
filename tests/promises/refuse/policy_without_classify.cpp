// SPDX-License-Identifier: Apache-2.0
// expect: an OperatorPolicy needs: comp::decision classify(const comp::op_info&) const
#include "whole.hpp"

struct faulty : whole::policy {
  comp::category classify(const comp::op_info&) const { return comp::category::allow; }
};
static_assert(comp::expect_policy<faulty>());
