// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <malloc.h>

#include <comp/strategy/exhaustive.hpp>

#include "spaces.hpp"

using comp::plan;
using comp::strategy::exhaustive;

TEST_CASE("exhaustive leaves out what the predicate refuses, even the most conservative plan") {
  const auto at_least_one_low = [](const plan& p) { return p.count_low() >= 1; };
  const auto plans = spaces::asked(exhaustive{}, spaces::of({2, 2, 2}, at_least_one_low), 2, spaces::hashed);
  CHECK(plans.size() == 7);
  CHECK(spaces::no_repeats(plans));
  for (const plan& p : plans) CHECK(at_least_one_low(p));
}

TEST_CASE("exhaustive refuses a space above its limit, with the size and what to tie") {
  CHECK_THROWS_WITH_AS(
      (void)exhaustive{.limit = 7}.start(spaces::of({2, 2, 2})),
      "search space has 8 plans in 3 groups (exhaustive may try 7): tie operators by kind or by scope, raise "
      "exhaustive.limit, or use greedy or random",
      comp::space_error);
  CHECK_NOTHROW((void)exhaustive{.limit = 8}.start(spaces::of({2, 2, 2})));
  CHECK_THROWS_WITH_AS((void)exhaustive{}.start(spaces::of(std::vector<std::size_t>(100, 2))),
                       doctest::Contains("search space has 2^100.0 plans in 100 groups (exhaustive may try 1024)"),
                       comp::space_error);
}

TEST_CASE("exhaustive asks for each plan of any space exactly once, whatever is asked at a time") {
  const bool holds = rc::check([] {
    const auto space = *spaces::arbitrary();
    const auto at_once = *rc::gen::inRange<std::size_t>(1, 9);
    const auto plans = spaces::asked(exhaustive{.limit = 5000}, space, at_once, spaces::hashed);
    RC_ASSERT(plans.size() == *space.size());
    RC_ASSERT(spaces::no_repeats(plans));
    RC_ASSERT(std::ranges::all_of(plans, [&](const plan& p) { return spaces::contains(space, p); }));
    RC_ASSERT(plans.front() == space.conservative());
  });
  CHECK(holds);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("exhaustive holds no more memory after a hundred thousand plans than after the first") {
  auto run = exhaustive{.limit = 1 << 20}.start(spaces::of(std::vector<std::size_t>(20, 2)));
  (void)run.ask(1);
  const auto before = mallinfo2().uordblks;
  for (int i = 0; i < 1000; ++i) (void)run.ask(100);
  CHECK(mallinfo2().uordblks <= before + 4096);
}
#endif
