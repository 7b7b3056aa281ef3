// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/sample.hpp>

using comp::status;

TEST_CASE("each status has the name that ledgers hold") {
  CHECK(comp::name(status::ok) == "ok");
  CHECK(comp::name(status::diverged) == "diverged");
  CHECK(comp::name(status::not_finite) == "not_finite");
  CHECK(comp::name(status::out_of_memory) == "out_of_memory");
  CHECK(comp::name(status::stopped_early) == "stopped_early");
  CHECK(comp::name(status::failed) == "failed");
}
