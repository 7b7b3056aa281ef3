// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/delta_debugging.hpp>

#include "every_strategy.hpp"

using comp::plan;
using comp::strategy::delta_debugging;

TEST_CASE("delta debugging asks for the two ends alone where all low is accepted") {
  const auto got = worlds::search(delta_debugging{}, spaces::of(std::vector<std::size_t>(64, 2)), worlds::chain());
  CHECK(got.plans.size() == 2);
  CHECK(got.best.plan.count_low() == 64);
}

TEST_CASE("delta debugging raises exactly the groups that harm, in about k log n plans") {
  const bool holds = rc::check([] {
    const auto harmful = *rc::gen::container<std::set<std::size_t>>(rc::gen::inRange<std::size_t>(0, 64));
    const std::vector<std::size_t> listed{harmful.begin(), harmful.end()};
    const auto got =
        worlds::search(delta_debugging{}, spaces::of(std::vector<std::size_t>(64, 2)), worlds::chain(listed));
    for (std::size_t i = 0; i < 64; ++i) RC_ASSERT(comp::is_low(got.best.plan[i]) == !harmful.contains(i));
    RC_ASSERT(got.plans.size() <= 2 + 2 * harmful.size() * 6 + 2);
  });
  CHECK(holds);
}

TEST_CASE("delta debugging gives each group the lowest level that does not harm") {
  const bool holds = rc::check([] {
    const auto levels = *rc::gen::container<std::vector<std::size_t>>(12, rc::gen::inRange<std::size_t>(1, 7));
    const auto limits = *rc::gen::container<std::vector<std::size_t>>(12, rc::gen::inRange<std::size_t>(0, 7));
    const auto space = spaces::of(levels);
    const auto got = worlds::search(delta_debugging{}, space, [&](const plan& p) {
      std::size_t sum = 0;
      comp::trial t{.plan = p, .accepted = true};
      for (std::size_t g = 0; g < 12; ++g) {
        sum += space.level(p, g);
        t.accepted = t.accepted && space.level(p, g) <= limits[g];
      }
      t.seconds = 100 - static_cast<double>(sum);
      return t;
    });
    for (std::size_t g = 0; g < 12; ++g) RC_ASSERT(space.level(got.best.plan, g) == std::min(levels[g] - 1, limits[g]));
  });
  CHECK(holds);
}

TEST_CASE("delta debugging raises one of a pair that only harms together") {
  const auto got = worlds::search(delta_debugging{}, spaces::of(std::vector<std::size_t>(16, 2)), [](const plan& p) {
    auto t = worlds::chain()(p);
    t.accepted = !(comp::is_low(p[3]) && comp::is_low(p[12]));
    return t;
  });
  CHECK(got.best.plan.count_low() == 15);
}

TEST_CASE("delta debugging ends at once where even the most conservative plan is refused") {
  const auto refuse = [](const plan& p) { return comp::trial{.plan = p}; };
  CHECK(worlds::search(delta_debugging{}, spaces::of({2, 2, 2}), refuse).plans.size() == 1);
}

TEST_CASE("delta debugging goes on where the most conservative plan may not be tried") {
  const auto some_low = [](const plan& p) { return p.count_low() > 0; };
  const auto got = worlds::search(delta_debugging{}, spaces::of({2, 2, 2, 2}, some_low), worlds::chain({1}));
  CHECK(got.best.plan.str() == "t1tt");
}
