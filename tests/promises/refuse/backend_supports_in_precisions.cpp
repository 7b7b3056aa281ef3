// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's supports needs the form: bool supports(const comp::op_info&, comp::precision) const
#include "whole.hpp"

struct faulty : whole::capable_backend {
  std::vector<comp::precision> supports(const comp::op_info&) const { return {}; }
};
static_assert(comp::expect_backend<faulty>());
