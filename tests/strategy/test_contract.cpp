// SPDX-License-Identifier: Apache-2.0
// What a search counts on of each strategy, whatever its idea.
#include <doctest/doctest.h>

#include <comp/strategy/beam.hpp>
#include <comp/strategy/delta_debugging.hpp>
#include <comp/strategy/genetic.hpp>
#include <comp/strategy/greedy.hpp>

#include "every_strategy.hpp"

namespace strategy = comp::strategy;
using comp::plan;
using comp::trial;

#define COMP_TEST_STRATEGIES strategy::beam, strategy::delta_debugging, strategy::genetic, strategy::greedy

namespace {

// Answers that have no sense: accepted or not and any time, the same for the same plan.
trial senseless(const plan& p) {
  trial t = spaces::hashed(p);
  t.accepted = std::hash<plan>{}(p) % 3 != 0;
  t.sample.loss = static_cast<double>(std::hash<plan>{}(p) % 7);
  if (std::hash<plan>{}(p) % 11 == 0) t.sample = {.status = comp::status::failed};
  t.accepted = (t.accepted && t.sample.ok()) || p.count_low() == 0;
  return t;
}

}  // namespace

TEST_CASE_TEMPLATE("a strategy asks for valid plans of the space, none twice, no more than it says", S,
                   COMP_TEST_STRATEGIES) {
  const bool holds = rc::check([] {
    const auto drawn = *spaces::arbitrary();
    const auto refused = *rc::gen::inRange<std::size_t>(2, 9);
    const comp::search_space space{drawn.base(), drawn.groups(),
                                   [refused](const plan& p) { return std::hash<plan>{}(p) % refused != 0; }};
    const auto plans = spaces::asked(S{}, space, *rc::gen::inRange<std::size_t>(1, 9), senseless);
    RC_ASSERT(spaces::no_repeats(plans));
    RC_ASSERT(std::ranges::all_of(plans, [&](const plan& p) { return spaces::contains(space, p); }));
    RC_ASSERT(plans.size() <= S{}.start(space).at_most());
    if (space.valid(space.conservative())) RC_ASSERT(plans.front() == space.conservative());
  });
  CHECK(holds);
}

TEST_CASE_TEMPLATE("a strategy asks the same of the same answers", S, COMP_TEST_STRATEGIES) {
  const auto space = spaces::of({2, 3, 2, 6, 2, 2, 4, 2, 2, 3});
  const auto first = spaces::asked(S{}, space, 1, senseless);
  CHECK(first.size() > 2);
  CHECK(spaces::asked(S{}, space, 1, senseless) == first);
}

TEST_CASE("a strategy that draws asks for as many plans as it was told to, from its seed alone") {
  const auto asked = [](std::uint64_t seed, std::size_t at_once) {
    return spaces::asked(strategy::genetic{.trials = 50, .seed = seed}, spaces::of(std::vector<std::size_t>(40, 3)),
                         at_once, spaces::hashed);
  };
  CHECK(asked(5, 1).size() == 50);
  CHECK(asked(5, 7) == asked(5, 1));
  CHECK(asked(6, 1) != asked(5, 1));
}

TEST_CASE_TEMPLATE("a strategy asks nothing of a space without plans, and one plan of an empty space", S,
                   COMP_TEST_STRATEGIES) {
  const auto nothing = [](const plan&) { return false; };
  CHECK(spaces::asked(S{}, spaces::of({2, 2}, nothing), 1, spaces::hashed).empty());
  CHECK(spaces::asked(S{}, comp::search_space{plan{}, {}, nothing}, 1, spaces::hashed).empty());
  CHECK(spaces::asked(S{}, comp::search_space{plan{3}, {}}, 1, spaces::hashed).size() == 1);
  CHECK(spaces::asked(S{}, spaces::of({1, 1}), 1, spaces::hashed).size() == 1);
  if constexpr (!std::same_as<S, strategy::greedy>) CHECK(S{}.start(spaces::of({2})).ask(0).empty());
}

TEST_CASE_TEMPLATE("a strategy ends when nothing is accepted, or nothing runs", S, COMP_TEST_STRATEGIES) {
  const auto space = spaces::of(std::vector<std::size_t>(12, 3));
  CHECK(spaces::asked(S{}, space, 3, [](const plan& p) { return trial{.plan = p}; }).size() < 1000);
}

TEST_CASE("greedy, and beam at any width, find the best plan where groups do not interact") {
  const bool holds = rc::check([] {
    const auto levels = *rc::gen::container<std::vector<std::size_t>>(5, rc::gen::inRange<std::size_t>(1, 5));
    const auto seconds = *rc::gen::container<std::vector<int>>(5 * 6, rc::gen::inRange(1, 1000));
    const auto time = [&](const plan& p) {
      double all = 0;
      for (std::size_t i = 0; i < p.size(); ++i) all += seconds[i * 6 + static_cast<std::size_t>(p[i])];
      return spaces::accepted_in(p, all);
    };
    double least = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      const auto row = seconds.begin() + static_cast<std::ptrdiff_t>(i * 6);
      least += *std::min_element(row, row + static_cast<std::ptrdiff_t>(levels[i]));
    }
    const auto found_by = [&](const auto& s) { return worlds::search(s, spaces::of(levels), time).best.seconds; };
    RC_ASSERT(found_by(strategy::greedy{}) == least);
    RC_ASSERT(found_by(strategy::beam{.width = *rc::gen::inRange<std::size_t>(0, 6)}) == least);
  });
  CHECK(holds);
}

TEST_CASE_TEMPLATE("a strategy finds that lowering all is best where it is", S, COMP_TEST_STRATEGIES) {
  const auto got = worlds::search(S{}, spaces::of(std::vector<std::size_t>(16, 2)), worlds::chain({}, 0.5, 0.4));
  CHECK(got.best.plan.count_low() == 16);
  CHECK(got.best.seconds == doctest::Approx(8));
}

TEST_CASE_TEMPLATE("a strategy finds most of the saving where one group of sixteen harms", S, COMP_TEST_STRATEGIES) {
  for (std::size_t harmful = 0; harmful < 16; harmful += 5) {
    CAPTURE(harmful);
    const auto got =
        worlds::search(S{}, spaces::of(std::vector<std::size_t>(16, 2)), worlds::chain({harmful}, 0.5, 0.1));
    CHECK(got.best.seconds < 8 + 0.25 * 8);  // 7.5 saved at most, less two casts
  }
}

TEST_CASE_TEMPLATE("a strategy handles a hundred thousand operators in a hundred groups", S, COMP_TEST_STRATEGIES) {
  std::vector<comp::op_group> groups;
  for (std::uint32_t g = 0; g < 100; ++g) {
    groups.push_back({fmt::format("block{}", g), {}, {comp::precision::fp32, comp::precision::bf16}});
    for (std::uint32_t i = 0; i < 1000; ++i) groups.back().operators.push_back(g * 1000 + i);
  }
  const comp::search_space space{plan{100'000}, std::move(groups)};
  auto run = S{}.start(space);
  std::size_t asked = 0, most_low = 0;
  for (auto plans = run.ask(8); !plans.empty() && asked < 40; plans = run.ask(8)) {
    for (const plan& p : plans) {
      ++asked;
      trial t = spaces::accepted_in(p, 2e5 - static_cast<double>(p.count_low()));
      t.accepted = !comp::is_low(p[4'500]);
      if (t.accepted) most_low = std::max(most_low, p.count_low());
      run.tell(t);
    }
  }
  CHECK(asked >= 10);
  CHECK(most_low > 0);
}
