// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <comp/observe/figures.hpp>

#include "made_up.hpp"

namespace {

comp::sample with_curve(std::vector<double> losses) {
  comp::sample s{.loss = 0, .batches = static_cast<std::int64_t>(losses.size()), .curve = std::move(losses)};
  for (const double loss : s.curve) s.loss += loss / static_cast<double>(s.curve.size());
  return s;
}

}  // namespace

TEST_CASE("losses are compared on the batches that both trained, whatever FP32 trained later") {
  const comp::sample fp32 = with_curve({4, 2, 1, 0.5, 0.25}), got = with_curve({4.04, 2.02});
  const auto change = comp::detail::change_of(got, fp32);
  REQUIRE(change);
  CHECK(change->difference == doctest::Approx(0.01));
  CHECK(change->batches == 2);
  CHECK(std::isinf(change->radius));
}

TEST_CASE("a change does not depend on the scale of the losses, nor on what FP32 trained beyond") {
  CHECK(rc::check([] {
    const auto n = *rc::gen::inRange<std::size_t>(1, 20);
    const auto losses = [](std::size_t count) {
      std::vector<double> all(count);
      std::generate(all.begin(), all.end(), [] { return *rc::gen::inRange(1, 1000) / 100.0; });
      return all;
    };
    std::vector<double> base = losses(n), own = losses(n), longer = base, scaled = base, scaled_own = own;
    longer.push_back(1e6);
    for (double& x : scaled) x *= 64;
    for (double& x : scaled_own) x *= 64;
    const auto change = comp::detail::change_of(with_curve(own), with_curve(base));
    RC_ASSERT(change->difference == comp::detail::change_of(with_curve(own), with_curve(longer))->difference);
    RC_ASSERT(std::abs(change->difference -
                       comp::detail::change_of(with_curve(scaled_own), with_curve(scaled))->difference) < 1e-12);
  }));
}

TEST_CASE("without curves means are compared where both trained as many batches, and else nothing is") {
  const comp::sample fp32{.loss = -2, .batches = 10}, got{.loss = -1.9, .batches = 10},
      shorter{.loss = -1, .batches = 5};
  CHECK(comp::detail::change_of(got, fp32)->difference == doctest::Approx(0.05));
  CHECK_FALSE(comp::detail::change_of(shorter, fp32));
  CHECK_FALSE(comp::detail::change_of(comp::sample{}, comp::sample{}));
}

TEST_CASE("a loss that is not finite has no percentage") {
  const comp::sample fp32 = with_curve({1, 1}), bad = with_curve({1, std::nan("")});
  CHECK(comp::detail::change_text(*comp::detail::change_of(bad, fp32)) == "not finite of 2 batches");
  CHECK(comp::detail::change_text(*comp::detail::change_of(with_curve({1.01}), fp32)) == "+1.00% of 1 batch");
  CHECK(comp::detail::change_text({.difference = -0.0022, .radius = 0.0019, .batches = 48}) ==
        "-0.22% +- 0.19% of 48 batches");
  CHECK(comp::detail::change_text({.difference = 0.18, .radius = 261, .batches = 16}) ==
        "+18.00% +- over 100% of 16 batches");
  CHECK(comp::detail::percent_text(123.4) == "+1.23e+04%");
}

TEST_CASE("an accepted plan speaks for those that lower less of it, in the same precisions, and for no others") {
  const comp::outcome o = made_up::outcome(12);
  comp::plan less = o.plan;
  less[0] = comp::precision::fp32;
  REQUIRE(comp::detail::covering_run(less, o) != nullptr);
  CHECK(comp::detail::covering_run(less, o)->plan == o.plan);
  comp::plan other = o.plan;
  other[0] = comp::precision::fp16;
  CHECK(comp::detail::covering_run(other, o) == nullptr);
  CHECK(comp::detail::covering_run(comp::plan(12, comp::precision::bf16), o) == nullptr);  // rejected
  CHECK(comp::detail::covering_run(o.plan, comp::outcome{}) == nullptr);
}
