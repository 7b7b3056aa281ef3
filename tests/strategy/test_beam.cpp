// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/beam.hpp>
#include <comp/strategy/greedy.hpp>

#include "every_strategy.hpp"

using comp::plan;
using comp::strategy::beam;

namespace {

// Two neighbours pay only together, and the way there costs; all others are slower in low precision.
comp::trial pairs(const plan& p) {
  double seconds = 10;
  for (std::size_t i = 0; i + 1 < p.size(); i += 2) {
    const int low = comp::is_low(p[i]) + comp::is_low(p[i + 1]);
    seconds += low == 1 ? 0.01 : low == 2 && i == 2 ? -1 : low == 2 ? 2 : 0;
  }
  return spaces::accepted_in(p, seconds);
}

}  // namespace

TEST_CASE("beam finds a pair that only pays together, where greedy stops") {
  const auto space = spaces::of(std::vector<std::size_t>(8, 2));
  CHECK(worlds::search(comp::strategy::greedy{}, space, pairs).best.plan.str() == "11111111");
  CHECK(worlds::search(beam{.width = 1}, space, pairs).best.plan.str() == "11111111");
  CHECK(worlds::search(beam{.width = 4}, space, pairs).best.plan.str() == "11tt1111");
}

TEST_CASE("beam goes through the groups once") {
  const auto space = spaces::of(std::vector<std::size_t>(6, 2));
  const auto flat = [](const plan& p) { return spaces::accepted_in(p, 1); };
  CHECK(worlds::search(beam{.width = 1}, space, flat).plans.size() == 2 + 6);
}
