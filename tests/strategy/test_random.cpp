// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/random.hpp>

#include "spaces.hpp"

using comp::plan;
using draws = comp::strategy::random;

TEST_CASE("random draws the same plans on every standard library") {
  const auto plans =
      spaces::asked(draws{.trials = 4, .seed = 1}, spaces::of({2, 2, 2, 2, 2, 2, 2, 2}), 4, spaces::hashed);
  std::mt19937_64 generator{1};  // its values are fixed by the C++ standard
  plan second{8};
  for (std::size_t g = 0; g < 8; ++g) second[g] = generator() % 2 == 0 ? comp::precision::fp32 : comp::precision::tf32;
  REQUIRE(plans.size() == 4);
  CHECK(plans[1] == second);
}

TEST_CASE("random is near uniform: each level of each group comes as often as the others") {
  const auto plans =
      spaces::asked(draws{.trials = 3000, .seed = 3}, spaces::of(std::vector<std::size_t>(20, 3)), 100, spaces::hashed);
  for (std::size_t g = 0; g < 20; ++g) {
    const auto low = std::ranges::count_if(plans, [g](const plan& p) { return comp::is_low(p[g]); });
    CHECK(low > 1850);  // 2000 expected, standard deviation 26
    CHECK(low < 2150);
  }
}

TEST_CASE("random ends where the predicate refuses every plan of a space that is too large to exhaust") {
  const auto nothing = [](const plan&) { return false; };
  CHECK(spaces::asked(draws{}, spaces::of(std::vector<std::size_t>(63, 2), nothing), 1, spaces::hashed).empty());
}

TEST_CASE("random still finds the plans of a predicate that refuses nearly all") {
  const auto one_low = [](const plan& p) { return p.count_low() == 1; };
  const auto plans = spaces::asked(draws{}, spaces::of(std::vector<std::size_t>(10, 2), one_low), 4, spaces::hashed);
  CHECK(plans.size() == 10);
}

TEST_CASE("random asks for as many plans of the space as it was told to, none twice, the most conservative first") {
  const bool holds = rc::check([] {
    const auto space = *spaces::arbitrary();
    const auto trials = *rc::gen::inRange<std::size_t>(0, 60);
    const auto plans = spaces::asked(draws{.trials = trials, .seed = *rc::gen::arbitrary<std::uint64_t>()}, space,
                                     *rc::gen::inRange<std::size_t>(1, 9), spaces::hashed);
    RC_ASSERT(plans.size() == std::min<std::size_t>(trials, *space.size()));
    RC_ASSERT(spaces::no_repeats(plans));
    if (trials > 0) RC_ASSERT(plans.front() == space.conservative());
    RC_ASSERT(std::ranges::all_of(plans, [&](const plan& p) { return spaces::contains(space, p); }));
  });
  CHECK(holds);
}
