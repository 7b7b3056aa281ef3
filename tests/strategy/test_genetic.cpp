// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/genetic.hpp>

#include "every_strategy.hpp"

using comp::plan;
using comp::strategy::genetic;

TEST_CASE("genetic finds its way by the loss where none of the first plans is accepted but FP32") {
  const auto space = spaces::of(std::vector<std::size_t>(32, 2));
  double saved = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto got = worlds::search(genetic{.trials = 256, .seed = seed}, space, worlds::chain({3, 9, 15, 20, 27, 31}));
    saved += (32 - got.best.seconds) / 13 / 10;
  }
  CHECK(saved > 0.6);  // of what the 26 harmless operators can save
}

TEST_CASE("genetic joins good parts of different plans") {
  // Halves pay when they are low as a whole; a plan drawn at random has neither.
  const auto halves = [](const plan& p) {
    double seconds = 10 + 0.1 * static_cast<double>(p.count_low());
    for (std::size_t half = 0; half < 2; ++half) {
      std::size_t low = 0;
      for (std::size_t i = 0; i < 4; ++i) low += comp::is_low(p[half * 8 + i]);
      seconds -= low == 4 ? 3 : 0;
    }
    auto t = spaces::accepted_in(p, seconds);
    t.accepted = p.count_low() < 16;
    return t;
  };
  int found = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto got =
        worlds::search(genetic{.trials = 512, .seed = seed}, spaces::of(std::vector<std::size_t>(16, 2)), halves);
    found += got.best.seconds < 6;
  }
  CHECK(found >= 18);
}

TEST_CASE("genetic's children have a run of groups of one plan told and the rest of another, where none changes") {
  const genetic strategy{.trials = 60, .population = 12, .mutation = 0, .seed = 3};
  const auto plans = spaces::asked(strategy, spaces::of(std::vector<std::size_t>(60, 2)), 1, spaces::hashed);
  const auto crossed = [](const plan& child, const plan& a, const plan& b) {  // a, then b, then a again
    std::size_t first = 0, last = 60;
    while (first < 60 && child[first] == a[first]) ++first;
    while (last > first && child[last - 1] == a[last - 1]) --last;
    for (std::size_t i = first; i < last; ++i) {
      if (child[i] != b[i]) return false;
    }
    return true;
  };
  for (std::size_t i = 12; i < plans.size(); ++i) {
    CAPTURE(i);
    bool found = false;
    for (std::size_t a = 0; a < i && !found; ++a) {
      for (std::size_t b = 0; b < i && !found; ++b) found = crossed(plans[i], plans[a], plans[b]);
    }
    CHECK(found);
  }
}
