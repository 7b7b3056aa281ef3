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

TEST_CASE("a decision that says nothing changes nothing: it follows, in FP32") {
  const comp::decision silent;
  CHECK(silent.category == category::follow);
  CHECK(silent.compute == comp::precision::fp32);
  CHECK(silent.accumulate == comp::precision::fp32);
  CHECK(silent.output == comp::precision::fp32);
}

TEST_CASE("decisions are equal only when every part is") {
  const comp::decision lowered{.category = category::allow, .compute = comp::precision::bf16};
  CHECK(lowered == comp::decision{.category = category::allow, .compute = comp::precision::bf16});
  CHECK(lowered != comp::decision{.category = category::deny, .compute = comp::precision::bf16});
  CHECK(lowered != comp::decision{.category = category::allow, .compute = comp::precision::fp16});
  CHECK(lowered != comp::decision{.category = category::allow,
                                  .compute = comp::precision::bf16,
                                  .accumulate = comp::precision::fp16});
  CHECK(lowered !=
        comp::decision{.category = category::allow, .compute = comp::precision::bf16, .output = comp::precision::bf16});
}
