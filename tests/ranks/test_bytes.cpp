// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/ranks/bytes.hpp>

#include "rank_search.hpp"

using comp::ranks::detail::packed;
using comp::ranks::detail::unpacked;

TEST_CASE("an outcome is the same after its way through bytes, but for the graph") {
  const comp::outcome found = thread_ranks::search_in({thread_ranks::typical()}).found.front();
  REQUIRE(found.trials.size() > 5);
  REQUIRE(found.contest.size() > 1);
  const auto got = unpacked<comp::outcome>(packed(found));
  CHECK(packed(got) == packed(found));
  CHECK(got.plan == found.plan);
  CHECK(got.trials.back().sample.curve == found.trials.back().sample.curve);
  CHECK(got.contest.back().label == found.contest.back().label);
  CHECK(got.reasons.back().text == found.reasons.back().text);
  CHECK(got.hardware == found.hardware);
  CHECK(got.trained.loss == found.trained.loss);
  CHECK(got.costs[1].seconds == found.costs[1].seconds);
}

TEST_CASE("a training's result keeps the plans that it changed to") {
  comp::training_result result;
  result.later = {{.batch = 7, .plan = comp::plan{2}, .reason = "its loss was lower"}};
  CHECK(unpacked<comp::training_result>(packed(result)).later == result.later);
}

TEST_CASE("all ranks are told since which batch the training is damaged") {
  CHECK(unpacked<comp::outcome>(packed(comp::outcome{.damaged_since = 30})).damaged_since == 30);
}

TEST_CASE("autocast's mark goes with a plan") {
  const comp::plan p = comp::plan{2, comp::precision::bf16}.as_autocast();
  CHECK(unpacked<comp::plan>(packed(p)) == p);
}

TEST_CASE("bytes that end too early are refused, and so is a length that cannot be") {
  const std::string whole = packed(std::string{"four"});
  CHECK_THROWS_WITH_AS(
      unpacked<std::string>(whole.substr(0, whole.size() - 1)),
      "a rank's message names 4 values where 3 bytes are left (ranks of one training speak by one version "
      "of comp): start the same program on all ranks",
      comp::rank_error);
  CHECK_THROWS_WITH_AS(unpacked<double>("abc"),
                       "a rank's message ends 5 bytes too early (ranks of one training speak by one version of comp): "
                       "start the same program on all ranks",
                       comp::rank_error);
}
