// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/losses/acceptance.hpp>
#include <limits>

using comp::passes_paper_rule;
using comp::sample;
using comp::status;

TEST_CASE("a candidate is accepted while its loss is under 101% of FP32's") {
  const sample fp32{.loss = 2};
  CHECK(passes_paper_rule(fp32, {.loss = 2}));
  CHECK(passes_paper_rule(fp32, {.loss = 2.0199}));
  CHECK(passes_paper_rule(fp32, {.loss = -7}));
  CHECK_FALSE(passes_paper_rule(fp32, {.loss = comp::acceptance_line(2, 0.01)}));
  CHECK_FALSE(passes_paper_rule(fp32, {.loss = 2.03}));
}

TEST_CASE("the line of a negative loss lies above it, where 101% of it would lie below") {
  const sample fp32{.loss = -2};
  CHECK(comp::acceptance_line(-2, 0.01) == doctest::Approx(-1.98));
  CHECK(passes_paper_rule(fp32, fp32));
  CHECK(passes_paper_rule(fp32, {.loss = -1.981}));
  CHECK_FALSE(passes_paper_rule(fp32, {.loss = -1.979}));
}

TEST_CASE("a loss of zero, and a tolerance of zero, accept what is no worse") {
  CHECK(passes_paper_rule({.loss = 0}, {.loss = 0}));
  CHECK(passes_paper_rule({.loss = 0}, {.loss = -1}));
  CHECK_FALSE(passes_paper_rule({.loss = 0}, {.loss = 1e-300}));
  CHECK(passes_paper_rule({.loss = 2}, {.loss = 2}, 0));
  CHECK_FALSE(passes_paper_rule({.loss = 2}, {.loss = std::nextafter(2.0, 3.0)}, 0));
}

TEST_CASE("what is not finite is never accepted") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  CHECK_FALSE(passes_paper_rule({.loss = 2}, {.loss = nan}));
  CHECK_FALSE(passes_paper_rule({.loss = nan}, {.loss = 2}));
  CHECK_FALSE(passes_paper_rule({.loss = 2}, {.loss = inf}));
  CHECK_FALSE(passes_paper_rule({.loss = 2, .losses = {1, 1}}, {.loss = 2, .losses = {1, nan}}));
}

TEST_CASE("each loss of a trainer with several must pass, and so must their mean") {
  const sample fp32{.loss = 1, .losses = {4, -2}};
  CHECK(passes_paper_rule(fp32, {.loss = 1, .losses = {4.03, -1.99}}));
  CHECK_FALSE(passes_paper_rule(fp32, {.loss = 1, .losses = {4.05, -2.05}}));
  CHECK_FALSE(passes_paper_rule(fp32, {.loss = 1, .losses = {3.9, -1.97}}));
  CHECK_FALSE(passes_paper_rule(fp32, {.loss = 1.02, .losses = {4, -2}}));
  CHECK_FALSE(passes_paper_rule(fp32, {.loss = 1, .losses = {4}}));
  CHECK_FALSE(passes_paper_rule(fp32, {.loss = 1}));
}

TEST_CASE("a run that did not end well is not accepted, however low its loss") {
  for (const status ended :
       {status::diverged, status::not_finite, status::out_of_memory, status::stopped_early, status::failed}) {
    CAPTURE(name(ended));
    CHECK_FALSE(passes_paper_rule({.loss = 2}, {.loss = 1, .status = ended}));
  }
}
