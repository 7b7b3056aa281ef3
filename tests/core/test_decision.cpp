// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/decision.hpp>

using comp::category;

TEST_CASE("the categories have the names that AMP systems give them") {
  CHECK(comp::name(category::allow) == "allow");
  CHECK(comp::name(category::infer) == "infer");
  CHECK(comp::name(category::follow) == "follow");
  CHECK(comp::name(category::deny) == "deny");
  CHECK(comp::name(category::clear) == "clear");
}
