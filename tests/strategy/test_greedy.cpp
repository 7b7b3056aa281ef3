// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/greedy.hpp>

#include "every_strategy.hpp"

using comp::plan;
using comp::trial;
using comp::strategy::greedy;
using worlds::search;

TEST_CASE("greedy starts from both ends, so that casts between neighbours do not hide the far one") {
  const auto space = spaces::of(std::vector<std::size_t>(6, 2));
  const auto time = worlds::chain({}, 0.5, 0.4);
  // Lowering one operator alone saves 0.5 and costs two casts, 0.8; lowering all saves 3.
  CHECK(search(greedy{}, space, time).best.plan.count_low() == 6);
  CHECK(search(greedy{}, space, time).best.seconds == doctest::Approx(3));
  CHECK(search(greedy{}, space, worlds::chain({}, 0.5, 0.6)).best.plan.count_low() == 6);  // each first step loses
}

TEST_CASE("greedy puts single operators back from the low end when they harm the loss") {
  const auto space = spaces::of(std::vector<std::size_t>(5, 2));
  CHECK(search(greedy{}, space, worlds::chain({3})).best.plan.str() == "ttt1t");
}

TEST_CASE("greedy keeps a plan when a change is faster by noise alone") {
  const auto space = spaces::of({2, 2, 2});
  const auto noisy = [](const plan& p) {
    const double seconds = 1 - 0.01 * static_cast<double>(p.count_low());
    return trial{.plan = p, .accepted = true, .seconds = seconds, .bounds = {seconds - 0.05, seconds + 0.05}};
  };
  for (const plan& p : search(greedy{}, space, noisy).plans)
    CHECK((p.count_low() <= 1 || p.count_low() == 3));  // never built upon a change that is noise
}

TEST_CASE("greedy takes a plan that is accepted over one that is not, however slow") {
  const auto space = spaces::of({2, 2});
  const auto judge = [](const plan& p) {
    trial t = spaces::accepted_in(p, 1 + static_cast<double>(p.count_low()));
    t.accepted = p.str() == "1t";
    return t;
  };
  CHECK(search(greedy{}, space, judge).best.plan.str() == "1t");
}
