// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/hierarchical.hpp>

#include "every_strategy.hpp"

using comp::plan;
using comp::strategy::hierarchical;

namespace {

std::vector<std::string> transformer(std::size_t blocks) {
  std::vector<std::string> names;
  for (std::size_t b = 0; b < blocks; ++b) {
    for (const char* part : {"attention.query", "attention.key", "attention.softmax", "mlp.up", "mlp.down"}) {
      names.push_back(fmt::format("block{}.{}", b, part));
    }
  }
  return names;
}

}  // namespace

TEST_CASE("hierarchical asks for the two ends alone where all low is accepted and no slower") {
  CHECK(worlds::search(hierarchical{}, worlds::named(transformer(6)), worlds::chain()).plans.size() == 2);
}

TEST_CASE("hierarchical cuts where scopes part") {
  const auto got = worlds::search(hierarchical{}, worlds::named(transformer(3)), worlds::chain({2}));
  REQUIRE(got.plans.size() > 3);
  // The middle of 15 lies in block1; the nearest change of block is after block 0 or 1.
  CHECK(got.plans[2].str() == "bbbbb1111111111");
  CHECK(got.plans[3].str() == "11111bbbbbbbbbb");
  CHECK(got.plans[4].str() == "bbb11bbbbbbbbbb");  // block0.attention alone
  CHECK(got.plans[5].str() == "111bbbbbbbbbbbb");  // block0.mlp
  CHECK(got.best.plan.str() == "bb1bbbbbbbbbbbb");
}

TEST_CASE("hierarchical pays little where harm lies together, whatever the order of the groups") {
  auto names = transformer(32);
  const std::vector<std::size_t> third{15, 16, 17};  // block3's attention
  const auto got = worlds::search(hierarchical{}, worlds::named(names), worlds::chain(third));
  CHECK(got.best.plan.count_low() == names.size() - third.size());
  CHECK(got.plans.size() <= 20);
  SUBCASE("groups that are not in the order of execution") {
    const auto in_order = worlds::named(names);
    std::vector<comp::op_group> groups = in_order.groups();
    std::ranges::reverse(groups);
    std::swap(groups[3], groups[90]);
    const comp::search_space space{in_order.base(), groups};
    CHECK(worlds::search(hierarchical{}, space, worlds::chain(third)).plans == got.plans);
  }
}

TEST_CASE("hierarchical lowers all that neither harms nor costs, in two plans a group at most") {
  const bool holds = rc::check([] {
    const auto harmful = *rc::gen::container<std::set<std::size_t>>(rc::gen::inRange<std::size_t>(0, 30));
    const auto slower = *rc::gen::container<std::set<std::size_t>>(rc::gen::inRange<std::size_t>(0, 30));
    const auto got = worlds::search(hierarchical{}, spaces::of(std::vector<std::size_t>(30, 2)), [&](const plan& p) {
      auto t = worlds::chain({harmful.begin(), harmful.end()})(p);
      for (const std::size_t i : slower) t.seconds += comp::is_low(p[i]) ? 100 : 0;
      t.bounds = {t.seconds, t.seconds};
      return t;
    });
    for (std::size_t i = 0; i < 30; ++i) {
      RC_ASSERT(comp::is_low(got.best.plan[i]) == !(harmful.contains(i) || slower.contains(i)));
    }
    RC_ASSERT(got.plans.size() <= 61);
  });
  CHECK(holds);
}

TEST_CASE("hierarchical keeps a part that is slower by noise alone, and gives back one that is clearly slower") {
  const auto answer = [](double more) {
    return [more](const plan& p) {
      const double seconds = 1 + more * static_cast<double>(p.count_low());
      return comp::trial{.plan = p, .accepted = true, .seconds = seconds, .bounds = {seconds - 0.1, seconds + 0.1}};
    };
  };
  CHECK(worlds::search(hierarchical{}, spaces::of({2, 2}), answer(0.01)).plans.size() == 2);
  const auto got = worlds::search(hierarchical{}, spaces::of({2, 2}), answer(0.3));
  CHECK(got.plans.size() == 4);
  CHECK(got.best.plan.count_low() == 0);
}

TEST_CASE("hierarchical tries what cannot be on its last level on the one before") {
  const auto space = spaces::of({3, 3, 3, 4, 1});
  const auto got = worlds::search(hierarchical{}, space, [&](const plan& p) {
    auto t = spaces::accepted_in(p, 20);
    for (std::size_t g = 0; g < 5; ++g) t.seconds -= static_cast<double>(space.level(p, g));
    t.bounds = {t.seconds, t.seconds};
    t.accepted = space.level(p, 1) < 2 && space.level(p, 2) < 1 && space.level(p, 3) < 2;
    return t;
  });
  CHECK(got.best.plan.str() == "bt1t1");
}
