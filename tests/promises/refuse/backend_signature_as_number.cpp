// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's signature needs the form: std::string signature() const
#include "whole.hpp"

struct faulty : whole::capable_backend {
  std::size_t signature() const { return 0; }
};
static_assert(comp::expect_backend<faulty>());
