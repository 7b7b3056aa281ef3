// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/successive_halving.hpp>

#include "every_strategy.hpp"

using comp::plan;
using comp::strategy::successive_halving;

TEST_CASE("successive halving asks a whole round at once, and half as much in each later one") {
  const auto space = spaces::of(std::vector<std::size_t>(40, 2));
  auto run = successive_halving{.plans = 16}.start(space);
  std::vector<std::size_t> rounds;
  for (auto plans = run.ask(100); !plans.empty(); plans = run.ask(100)) {
    rounds.push_back(plans.size());
    for (const plan& p : plans) run.tell(spaces::hashed(p));
  }
  CHECK(rounds == std::vector<std::size_t>{16, 8, 8, 8, 8});
  CHECK(successive_halving{.plans = 16}.start(space).at_most() == 48);
}

TEST_CASE("successive halving looks at the neighbourhoods of ever fewer plans, ever nearer") {
  const auto space = spaces::of(std::vector<std::size_t>(64, 2));
  auto run = successive_halving{.plans = 16, .seed = 2}.start(space);
  std::vector<plan> known;
  std::vector<comp::trial> told;
  for (std::size_t round = 0; round < 5; ++round) {
    const auto plans = run.ask(100);
    std::vector<comp::trial> field = told;
    std::ranges::sort(field, {}, &comp::trial::seconds);
    if (round > 0) field.resize(std::min<std::size_t>(field.size(), 16U >> round));
    for (const plan& p : plans) {
      if (round > 0) {
        std::size_t nearest = 64;
        for (const auto& t : field) {
          std::size_t differ = 0;
          for (std::size_t i = 0; i < 64; ++i) differ += p[i] != t.plan[i];
          nearest = std::min(nearest, differ);
        }
        CHECK(nearest <= (64U >> (round + 1)));
      }
      told.push_back(spaces::hashed(p));
      run.tell(told.back());
    }
    if (round > 0) {  // the survivors go on with their neighbours; the others are out
      for (std::size_t i = told.size() - plans.size(); i < told.size(); ++i) field.push_back(told[i]);
      told = field;
    }
  }
  CHECK(run.ask(1).empty());
}

TEST_CASE("successive halving goes on from accepted plans alone, once there are any") {
  const auto space = spaces::of(std::vector<std::size_t>(64, 2));
  std::vector<plan> asked;
  spaces::asked(successive_halving{.plans = 8}, space, 1, [&](const plan& p) {
    asked.push_back(p);
    auto t = spaces::accepted_in(p, 1);
    t.accepted = p == space.conservative();
    return t;
  });
  REQUIRE(asked.size() == 8 + 3 * 4);
  for (std::size_t i = 8; i < asked.size(); ++i) CHECK(asked[i].count_low() <= 16);  // neighbours of FP32
}
