// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/strategy/pareto.hpp>
#include <limits>

#include "every_strategy.hpp"

using comp::plan;
using comp::trial;
using comp::strategy::pareto;

namespace {

// Each operator trades time against memory and loss in its own way.
trial trade(const plan& p) {
  trial t = spaces::accepted_in(p, 100);
  t.sample.loss = 1;
  t.sample.peak_bytes = 1000;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const auto level = static_cast<double>(p[i]);
    t.seconds -= level * (1 + static_cast<double>(i % 3));
    t.sample.peak_bytes += static_cast<std::int64_t>(level) * (i % 2 == 0 ? -20 : 15);
    t.sample.loss += 0.001 * level * static_cast<double>((i * i) % 5);
  }
  t.bounds = {t.seconds, t.seconds};
  return t;
}

std::vector<trial> searched(const pareto& strategy, const comp::search_space& space, const worlds::answer& answer) {
  auto run = strategy.start(space);
  for (auto plans = run.ask(3); !plans.empty(); plans = run.ask(3)) {
    for (const plan& p : plans) run.tell(answer(p));
  }
  return run.front();
}

}  // namespace

TEST_CASE("one trial dominates another that is no better in anything and worse in one") {
  const auto made = [](double seconds, std::int64_t bytes, double loss) {
    trial t{.seconds = seconds};
    t.sample.peak_bytes = bytes;
    t.sample.loss = loss;
    return t;
  };
  using comp::strategy::dominates;
  CHECK(dominates(made(1, 10, 1), made(2, 10, 1)));
  CHECK(dominates(made(1, 9, 1), made(1, 10, 1)));
  CHECK(dominates(made(1, 10, 0.5), made(1, 10, 1)));
  CHECK_FALSE(dominates(made(1, 10, 1), made(1, 10, 1)));
  CHECK_FALSE(dominates(made(1, 11, 1), made(2, 10, 1)));
  CHECK(dominates(made(1, 0, 1), made(2, 0, 1)));  // memory was not measured
  CHECK_FALSE(dominates(made(1, 0, 1), made(2, 10, 1)));
  CHECK(dominates(made(1, 10, 1), made(1, 10, std::numeric_limits<double>::quiet_NaN())));
}

TEST_CASE("pareto finds the whole front of a space that it can go through") {
  const auto space = spaces::of({2, 3, 2, 2, 3, 2});
  std::vector<trial> all, expected;
  plan p = space.conservative();
  for (std::size_t code = 0; code < *space.size(); ++code) {
    for (std::size_t g = 0, rest = code; g < 6; rest /= space.groups()[g++].levels.size())
      space.set(p, g, rest % space.groups()[g].levels.size());
    all.push_back(trade(p));
  }
  for (const trial& t : all) {
    if (std::ranges::none_of(all, [&](const trial& other) { return comp::strategy::dominates(other, t); }))
      expected.push_back(t);
  }
  const auto found = searched(pareto{.trials = 1000}, space, trade);
  const auto plans_of = [](const std::vector<trial>& trials) {
    std::set<plan> plans;
    for (const trial& t : trials) plans.insert(t.plan);
    return plans;
  };
  CHECK(expected.size() > 5);
  CHECK(plans_of(found) == plans_of(expected));
  CHECK(std::ranges::is_sorted(found, {}, &trial::seconds));
}

TEST_CASE("no member of a front dominates another, in a space that is too large to go through") {
  const auto front = searched(pareto{.trials = 200, .seed = 4}, spaces::of(std::vector<std::size_t>(50, 4)), trade);
  CHECK(front.size() > 10);
  for (const trial& a : front) {
    CHECK(std::ranges::none_of(front, [&](const trial& b) { return comp::strategy::dominates(b, a); }));
  }
}

TEST_CASE("pareto leaves out what is not accepted unless it is asked for, and what did not run always") {
  const auto space = spaces::of({2, 2, 2});
  const auto judge = [](const plan& p) {
    trial t = trade(p);
    t.accepted = !comp::is_low(p[2]);
    if (comp::is_low(p[0])) t.sample.status = comp::status::failed, t.accepted = false;
    return t;
  };
  const auto low_in_any = [](const std::vector<trial>& front, std::size_t i) {
    return std::ranges::any_of(front, [i](const trial& t) { return comp::is_low(t.plan[i]); });
  };
  const auto strict = searched(pareto{}, space, judge), loose = searched(pareto{.rejected_too = true}, space, judge);
  CHECK_FALSE(low_in_any(strict, 2));
  CHECK(low_in_any(loose, 2));
  CHECK_FALSE(low_in_any(loose, 0));
  CHECK(searched(pareto{}, space, [](const plan& p) { return trial{.plan = p}; }).empty());
}

TEST_CASE("pareto asks for as many plans as it was told to, from its seed alone") {
  const auto space = spaces::of(std::vector<std::size_t>(40, 3));
  const auto first = spaces::asked(pareto{.trials = 50, .seed = 5}, space, 1, trade);
  CHECK(first.size() == 50);
  CHECK(spaces::asked(pareto{.trials = 50, .seed = 5}, space, 1, trade) == first);
  CHECK(spaces::asked(pareto{.trials = 50, .seed = 6}, space, 1, trade) != first);
}

TEST_CASE("pareto changes one group and a run of groups by turns") {
  const auto space = spaces::of(std::vector<std::size_t>(100, 2));
  const auto plans = spaces::asked(pareto{.trials = 102}, space, 1, [&](const plan& p) {
    trial t = trade(p);
    t.accepted = p == space.conservative();  // the front stays that one plan
    return t;
  });
  const auto single = std::ranges::count_if(plans, [](const plan& p) { return p.count_low() == 1; });
  CHECK(single >= 50);
  CHECK(single <= 75);
}
