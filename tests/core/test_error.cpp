// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/error.hpp>
#include <string>
#include <vector>

TEST_CASE("a check that holds throws nothing") {
  CHECK_NOTHROW(comp::require<comp::plan_error>(true, "plan {} is wrong (it is not): keep it", 7));
}

TEST_CASE("a check that fails throws the error it names, with the values in its text") {
  CHECK_THROWS_WITH_AS(
      comp::require<comp::space_error>(false, "{} groups of {} levels (at most {}): tie more operators", 40, 2, "2^20"),
      "40 groups of 2 levels (at most 2^20): tie more operators", comp::space_error);
}

TEST_CASE("a text with braces in its values is given as it is") {
  CHECK_THROWS_WITH_AS(comp::require<comp::file_error>(false, "\"{}\" is no plan", "{}{0}"), "\"{}{0}\" is no plan",
                       comp::file_error);
}

TEST_CASE("texts are joined by what stands between them") {
  CHECK(comp::joined(std::vector<int>{}, ", ") == "");
  CHECK(comp::joined(std::vector<std::string>{"", "b", ""}, ", ") == ", b, ");
  CHECK(comp::joined(std::vector{1, 2}, " x ", [](int i) { return 10 * i; }) == "10 x 20");
}
