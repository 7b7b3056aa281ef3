// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp/core/sample.hpp>

using comp::status;

TEST_CASE("a sample that was not filled in has no loss, no time and no memory") {
  const comp::sample empty;
  CHECK(std::isnan(empty.loss));
  CHECK(empty.seconds == 0);
  CHECK(empty.batches == 0);
  CHECK(empty.peak_bytes == 0);
  CHECK_FALSE(empty.score.has_value());
  CHECK(empty.ok());
}

TEST_CASE("only the status ok is ok") {
  for (const auto s :
       {status::diverged, status::not_finite, status::out_of_memory, status::stopped_early, status::failed}) {
    CAPTURE(comp::name(s));
    CHECK_FALSE(comp::sample{.status = s}.ok());
  }
}

TEST_CASE("each status has the name that ledgers hold") {
  CHECK(comp::name(status::ok) == "ok");
  CHECK(comp::name(status::diverged) == "diverged");
  CHECK(comp::name(status::not_finite) == "not_finite");
  CHECK(comp::name(status::out_of_memory) == "out_of_memory");
  CHECK(comp::name(status::stopped_early) == "stopped_early");
  CHECK(comp::name(status::failed) == "failed");
}

TEST_CASE("a stop predicate is asked with the sample so far") {
  const comp::stop_predicate too_slow = [](const comp::sample& so_far) { return so_far.seconds > 1; };
  CHECK_FALSE(too_slow({.seconds = 0.5}));
  CHECK(too_slow({.seconds = 2}));
}
