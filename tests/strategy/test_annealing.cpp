// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/annealing.hpp>

#include "every_strategy.hpp"

using comp::plan;
using comp::strategy::annealing;

TEST_CASE("annealing leaves a local optimum that costs less than its heat") {
  // Every second group harms, so no run of groups helps: of the others one or two cost 0.1% each, three and four pay.
  const auto hill = [](const plan& p) {
    std::size_t low = 0, harmful = 0;
    for (std::size_t i = 0; i < 8; ++i) (i % 2 == 0 ? low : harmful) += comp::is_low(p[i]);
    auto t = spaces::accepted_in(p, low <= 2 ? 1 + 0.001 * double(low) : 1 - 0.1 * double(low));
    t.accepted = harmful == 0;
    return t;
  };
  const auto space = spaces::of(std::vector<std::size_t>(8, 2));
  int found = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    found += worlds::search(annealing{.trials = 100, .seed = seed}, space, hill).best.seconds < 0.61;
  CHECK(found >= 18);
}

TEST_CASE("annealing never steps upon a plan that is not accepted") {
  const auto space = spaces::of(std::vector<std::size_t>(30, 2));
  // All but the conservative plan are refused: each plan asked for is one step from it, a run on one level.
  const auto plans = spaces::asked(annealing{}, space, 1, [&](const plan& p) {
    auto t = spaces::accepted_in(p, 1);
    t.accepted = p == space.conservative();
    return t;
  });
  for (std::size_t i = 2; i < plans.size(); ++i) {
    const std::string letters = plans[i].str();
    const auto first = letters.find('t'), last = letters.rfind('t');
    CHECK(letters.substr(first, last - first + 1).find('1') == std::string::npos);
    CHECK(last - first < 16);
  }
}
