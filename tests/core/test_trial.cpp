// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/trial.hpp>

using comp::stage;
using comp::trial;

TEST_CASE("each stage has the name that ledgers hold") {
  CHECK(comp::name(stage::baseline) == "baseline");
  CHECK(comp::name(stage::losses) == "losses");
  CHECK(comp::name(stage::times) == "times");
  CHECK(comp::name(stage::contest) == "contest");
  CHECK(comp::name(stage::training) == "training");
}

TEST_CASE("a trial is clearly faster when its interval lies wholly below the other's") {
  trial fast{.accepted = true, .seconds = 1.0, .bounds = {0.9, 1.1}};
  trial slow{.accepted = true, .seconds = 2.0, .bounds = {1.9, 2.1}};
  CHECK(clearly_faster(fast, slow));
  CHECK_FALSE(clearly_faster(slow, fast));
  SUBCASE("not when the intervals overlap") {
    fast.bounds.high = 1.95;
    CHECK_FALSE(clearly_faster(fast, slow));
  }
  SUBCASE("not when it was not accepted, however fast") {
    fast.accepted = false;
    CHECK_FALSE(clearly_faster(fast, slow));
    CHECK(clearly_faster(slow, fast));
  }
  SUBCASE("by the medians where an interval is not known") {
    fast.bounds = {};
    CHECK(clearly_faster(fast, slow));
    CHECK_FALSE(clearly_faster(slow, fast));
  }
}
