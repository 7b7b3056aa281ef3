// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/losses/acceptance.hpp>
#include <limits>

#include "processor_time.hpp"

using comp::candidate_cut;
using comp::sample;
using comp::status;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

sample epoch_of(std::size_t batches, double loss, double seconds) {
  return {.loss = loss,
          .batches = static_cast<std::int64_t>(batches),
          .batch_seconds = std::vector<double>(batches, seconds),
          .curve = std::vector<double>(batches, loss)};
}

/// After how many batches a candidate of steady loss and time is ended, and as what; 0: never.
std::pair<std::size_t, status> ended(const candidate_cut& cut, double loss, double seconds, std::size_t batches = 100) {
  for (std::size_t n = 1; n <= batches; ++n) {
    if (const status s = cut(epoch_of(n, loss, seconds)); s != status::ok) return {n, s};
  }
  return {0, status::ok};
}

}  // namespace

TEST_CASE("a candidate as good as FP32 is never cut") {
  const sample fp32 = epoch_of(100, 2, 1);
  CHECK(ended({{}, fp32, inf}, 2, 1).second == status::ok);
  CHECK(ended({{}, fp32, inf}, 2, 1.49).second == status::ok);
  CHECK(ended({{}, fp32, 1}, 2, 1.19).second == status::ok);
  CHECK(ended({{}, fp32, inf}, 5.9, 1).second == status::ok);
}

TEST_CASE("a loss that is not finite ends the epoch at that batch") {
  const sample fp32 = epoch_of(100, 2, 1);
  const candidate_cut cut{{}, fp32, inf};
  CHECK(cut({.loss = std::numeric_limits<double>::quiet_NaN()}) == status::not_finite);
  CHECK(cut({.loss = -inf}) == status::not_finite);
  CHECK(cut({.loss = 1, .losses = {1, inf}}) == status::not_finite);
}

TEST_CASE("a loss far above FP32's over the same batches has diverged") {
  const sample fp32 = epoch_of(100, 2, 1);
  const auto [batch, how] = ended({{}, fp32, inf}, 6.1, 1);
  CHECK(how == status::diverged);
  CHECK(batch == 8);
  SUBCASE("a negative loss too") {
    const sample negative = epoch_of(100, -2, 1);
    CHECK(ended({{}, negative, inf}, 1.9, 1).second == status::ok);
    CHECK(ended({{}, negative, inf}, 2.1, 1).second == status::diverged);
  }
  SUBCASE("one far below it where losses are maximised, and none above") {
    CHECK(ended({{}, fp32, inf, -1}, 6.1, 1).second == status::ok);
    CHECK(ended({{}, fp32, inf, -1}, -2.1, 1).second == status::diverged);
  }
  SUBCASE("but not one that goes above and below zero as FP32's does, whose mean is near zero") {
    sample fp32_swings = epoch_of(100, 0, 1), swings = epoch_of(50, 0.1, 1);
    for (std::size_t i = 0; i < 100; ++i) fp32_swings.curve[i] = i % 2 ? 1 : -1;
    for (std::size_t i = 0; i < 50; ++i) swings.curve[i] = i % 2 ? 1.2 : -1;
    CHECK(candidate_cut{{}, fp32_swings, inf}(swings) == status::ok);
  }
  SUBCASE("not judged where FP32 recorded no curve") {
    sample silent = fp32;
    silent.curve.clear();
    CHECK(ended({{}, silent, inf}, 1e9, 1).second == status::ok);
  }
}

TEST_CASE("a candidate slower than the limits is cut after a few batches") {
  const sample fp32 = epoch_of(100, 2, 1);
  CHECK(ended({{}, fp32, inf}, 2, 1.6) == std::pair{std::size_t{7}, status::stopped_early});
  CHECK(ended({{}, fp32, 0.5}, 2, 0.7) == std::pair{std::size_t{7}, status::stopped_early});
  CHECK(ended({{}, fp32, 0.5}, 2, 0.59).second == status::ok);
}

TEST_CASE("FP16 that is 50 times slower is cut after three batches: the first may be slow for other reasons") {
  const sample fp32 = epoch_of(100, 2, 1);
  CHECK(ended({{}, fp32, inf}, 2, 50) == std::pair{std::size_t{3}, status::stopped_early});
  sample first_is_slow = epoch_of(20, 2, 1);
  first_is_slow.batch_seconds[0] = 1000;
  CHECK(candidate_cut{{}, fp32, inf}(first_is_slow) == status::ok);
}

TEST_CASE("slow batches here and there cut nothing: even the quick ones must be slow") {
  const sample fp32 = epoch_of(100, 2, 1);
  sample noisy = epoch_of(20, 2, 1);
  for (std::size_t i = 0; i < 20; ++i) noisy.batch_seconds[i] = i % 3 ? 10 : 1;
  CHECK(candidate_cut{{}, fp32, inf}(noisy) == status::ok);
  sample two_of_three = epoch_of(3, 2, 1);
  two_of_three.batch_seconds = {1, 50, 1};
  CHECK(candidate_cut{{}, fp32, inf}(two_of_three) == status::ok);
}

TEST_CASE("nothing is judged by times that are not there") {
  sample fp32 = epoch_of(100, 2, 1), got = epoch_of(50, 2, 100);
  fp32.batch_seconds.clear();
  CHECK(candidate_cut{{}, fp32, inf}(got) == status::ok);
  got.batch_seconds.clear();
  CHECK(candidate_cut{{}, epoch_of(100, 2, 1), inf}(got) == status::ok);
}

TEST_CASE("a candidate that gets slow late is still cut, within an eighth of what was trained") {
  const sample fp32 = epoch_of(4000, 2, 1);
  const candidate_cut cut{{}, fp32, inf};
  sample late = epoch_of(1000, 2, 1);
  for (std::size_t n = 1001; n < 4000; ++n) {
    late.batch_seconds.push_back(9);
    late.curve.push_back(2);
    if (cut(late) != status::ok) break;
  }
  const auto slow_share =
      static_cast<double>(late.batch_seconds.size() - 1000) / static_cast<double>(late.batch_seconds.size());
  CHECK(slow_share > 0.7);
  CHECK(slow_share < 0.8);
}

TEST_CASE("judging a long epoch batch by batch costs a few passes over it, not one per batch") {
  const std::size_t n = 100'000;
  const sample fp32 = epoch_of(n, 2, 1);
  const candidate_cut cut{{}, fp32, inf};
  sample so_far{.loss = 2};
  const double begin = processor_seconds();
  for (std::size_t i = 0; i < n; ++i) {
    so_far.batch_seconds.push_back(1);
    so_far.curve.push_back(2);
    REQUIRE(cut(so_far) == status::ok);
  }
  CHECK(processor_seconds() - begin < 5);  // a pass per batch: 10^10 steps
}
