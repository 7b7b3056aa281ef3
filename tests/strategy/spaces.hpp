// SPDX-License-Identifier: Apache-2.0
// Small search spaces for the tests of strategies, and random ones for RapidCheck.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <comp/core/search_space.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace spaces {

using comp::plan;
using comp::precision;
using comp::search_space;

/// One operator per group, each with `levels[g]` levels.
inline search_space of(const std::vector<std::size_t>& levels, std::function<bool(const plan&)> valid = {}) {
  std::vector<comp::op_group> groups;
  for (std::size_t g = 0; g < levels.size(); ++g) {
    groups.push_back(
        {std::to_string(g),
         {static_cast<std::uint32_t>(g)},
         {comp::all_precisions.begin(), comp::all_precisions.begin() + static_cast<std::ptrdiff_t>(levels[g])}});
  }
  return {plan{levels.size()}, std::move(groups), std::move(valid)};
}

/// 0 to 6 groups of 1 to 3 operators with 1 to 4 levels; operators in no group have any precision.
inline rc::Gen<search_space> arbitrary() {
  return rc::gen::exec([] {
    const auto groups = *rc::gen::inRange<std::size_t>(0, 7);
    std::vector<comp::op_group> op_groups;
    plan base;
    std::vector<precision> choices;
    for (std::size_t g = 0; g < groups; ++g) {
      comp::op_group group{.name = std::to_string(g)};
      const auto tied = *rc::gen::inRange<std::size_t>(1, 4);
      for (std::size_t i = 0; i < tied; ++i) {
        group.operators.push_back(static_cast<std::uint32_t>(choices.size()));
        choices.push_back(precision::fp32);
      }
      const auto levels = *rc::gen::inRange<std::ptrdiff_t>(1, 5);
      group.levels.assign(comp::all_precisions.begin(), comp::all_precisions.begin() + levels);
      op_groups.push_back(std::move(group));
      choices.push_back(*rc::gen::elementOf(comp::all_precisions));
    }
    return search_space{plan{std::move(choices)}, std::move(op_groups)};
  });
}

inline bool contains(const search_space& space, const plan& p) { return space.project(p) == p && space.valid(p); }

/// Every plan that a strategy asks for, each answered by `answer`, asked `at_once` at a time.
std::vector<plan> asked(const auto& strategy, const search_space& space, std::size_t at_once,
                        const std::function<comp::trial(const plan&)>& answer) {
  std::vector<plan> all;
  auto run = strategy.start(space);
  for (auto plans = run.ask(at_once); !plans.empty(); plans = run.ask(at_once)) {
    for (const plan& p : plans) {
      all.push_back(p);
      run.tell(answer(p));
    }
    if (plans.size() > at_once || all.size() > 100'000) break;
  }
  return all;
}

inline comp::trial accepted_in(const plan& p, double seconds) {
  return {.plan = p, .accepted = true, .seconds = seconds, .bounds = {seconds, seconds}};
}

/// A time that has nothing to do with precision, the same for the same plan.
inline comp::trial hashed(const plan& p) {
  return accepted_in(p, 1 + static_cast<double>(std::hash<plan>{}(p) % 1000) / 1000);
}

inline bool no_repeats(const std::vector<plan>& plans) {
  return std::set<plan>(plans.begin(), plans.end()).size() == plans.size();
}

}  // namespace spaces
