// SPDX-License-Identifier: Apache-2.0
// expect: nothing
#include "whole.hpp"

static_assert(comp::expect_backend<whole::backend>());
static_assert(comp::expect_backend<whole::capable_backend>());
static_assert(comp::expect_policy<whole::policy>());
static_assert(comp::expect_strategy<whole::strategy>());
static_assert(comp::expect_observer<whole::observer>());
