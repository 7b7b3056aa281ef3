// SPDX-License-Identifier: Apache-2.0
// expect: a Backend's supported_precisions needs the form: std::vector<comp::precision> supported_precisions() const
#include "whole.hpp"

struct faulty : whole::capable_backend {
  std::vector<comp::precision> supported_precisions() { return {}; }
};
static_assert(comp::expect_backend<faulty>());
