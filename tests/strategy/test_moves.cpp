// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/moves.hpp>
#include <limits>

#include "spaces.hpp"

using comp::plan;
namespace strategy = comp::strategy;

TEST_CASE("the lowest plan has each group on its last level") {
  CHECK(strategy::lowest(spaces::of({1, 2, 3, 6})).str() == "1tbE");
}

TEST_CASE("changes lead from the conservative plan to the lowest, and no more plans are asked for than there are") {
  CHECK(strategy::count_changes(spaces::of({1, 2, 3, 6})) == 0 + 1 + 2 + 5);
  CHECK(strategy::at_most_plans(spaces::of({1, 2, 3, 6}), 100) == 36);
  CHECK(strategy::at_most_plans(spaces::of({1, 2, 3, 6}), 35) == 35);
  CHECK(strategy::at_most_plans(spaces::of(std::vector<std::size_t>(100, 2)), 100) == 100);  // 2^100 plans
}

TEST_CASE("a fraction is in [0, 1), from the upper 53 bits of a draw") {
  std::mt19937_64 first{7}, second{7};
  for (int i = 0; i < 1000; ++i) {
    const double drawn = strategy::fraction(first);
    CHECK(drawn == static_cast<double>(second() >> 11) / 9007199254740992.0);
    REQUIRE(drawn >= 0);
    REQUIRE(drawn < 1);
  }
}

TEST_CASE("drawn plans lie between the ends, those near them as often as others") {
  const auto space = spaces::of(std::vector<std::size_t>(100, 2));
  std::mt19937_64 generator{3};
  std::vector<int> deciles(10);
  for (int i = 0; i < 2000; ++i)
    ++deciles[std::min<std::size_t>(strategy::draw_plan(space, generator).count_low() / 10, 9)];
  for (const int count : deciles) {
    CHECK(count > 130);  // 200 expected; uniform draws would give none outside 30 to 70
    CHECK(count < 270);
  }
}

TEST_CASE("a move keeps to the space and changes a run of neighbours") {
  const bool holds = rc::check([] {
    const auto levels = *rc::gen::container<std::vector<std::size_t>>(20, rc::gen::inRange<std::size_t>(1, 5));
    const auto space = spaces::of(levels);
    std::mt19937_64 generator{*rc::gen::arbitrary<std::uint64_t>()};
    const plan before = space.random(generator);
    const auto longest = *rc::gen::inRange<std::size_t>(0, 40);
    plan after = before;
    strategy::move_run(space, after, generator, longest);
    RC_ASSERT(spaces::contains(space, after));
    std::size_t first = 20, last = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      if (before[i] != after[i]) first = std::min(first, i), last = i + 1;
    }
    RC_ASSERT(first >= last || last - first <= std::clamp<std::size_t>(longest, 1, 20));
  });
  CHECK(holds);
}

TEST_CASE("a move of one group always changes one that has two levels, to each of the others") {
  const auto space = spaces::of({3});
  std::mt19937_64 generator{1};
  std::set<plan> plans;
  for (int i = 0; i < 50; ++i) {
    plan p = space.conservative();
    strategy::move_run(space, p, generator, 1);
    plans.insert(p);
  }
  CHECK(plans == std::set<plan>{comp::parse_plan("t"), comp::parse_plan("b")});
}

TEST_CASE("a plan is fresh once, and never where it is not valid") {
  const auto space = spaces::of({2, 2}, [](const plan& p) { return p.count_low() < 2; });
  strategy::asked_plans asked;
  CHECK(asked.fresh(space, space.conservative()));
  CHECK_FALSE(asked.fresh(space, space.conservative()));
  CHECK_FALSE(asked.fresh(space, strategy::lowest(space)));
  CHECK_FALSE(asked.exhausted(space, 999));
  CHECK(asked.exhausted(space, 1000));
}

TEST_CASE("an order of what plans gave: accepted by time, others by loss, equals by number") {
  const auto entry = [](bool accepted, double seconds, double loss, std::size_t number) {
    comp::trial t{.accepted = accepted, .seconds = seconds};
    t.sample.loss = loss;
    return strategy::scored{t, number};
  };
  std::vector<strategy::scored> field{entry(false, 1, std::numeric_limits<double>::quiet_NaN(), 0),
                                      entry(false, 9, 2, 1), entry(true, 4, 1, 2), entry(true, 3, 1, 3),
                                      entry(true, 3, 0, 4)};
  strategy::keep_best(field, 4);
  std::vector<std::size_t> order;
  for (const auto& s : field) order.push_back(s.number);
  CHECK(order == std::vector<std::size_t>{3, 4, 2, 1});
}
