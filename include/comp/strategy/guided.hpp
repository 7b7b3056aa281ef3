// SPDX-License-Identifier: Apache-2.0
// The default strategy. It computes whole plans from the costs of operators and casts, instead of trying operators one
// by one as the paper does.
//   1. Profiles in FP32 and in each low precision give the seconds of each operator (without profiles, its operations
//      and bytes do). From them a minimum cut gives the cheapest plan of the whole graph, with each operator free.
//   2. That plan, joined with the rule-based plans, is judged by its losses. A rejected plan is repaired by bisection
//      (strategy/bisection.hpp): operators go back to FP32, the most sensitive ones first, or in the order of the
//      policy's lists if the backend has no sensitivity().
//   3. Plans of accepted operators are timed in turns. The times correct the costs, the corrected costs give the next
//      cheapest plan, and so on until the cheapest plan is one that was measured.
// Use it unless the whole space has to be tried (exhaustive), or a paper's algorithm is to be compared (greedy and
// others). The search itself runs these steps, as both stages in one (docs/understand/search.md). Given as stage 2
// alone, in which only times count, this is `greedy`, whose `run` it has. It is never worse than an accepted rule-based
// plan, because such plans are raced, too.
//
// Source: none of the systems that comp is compared with searches so; the parts have their sources in their headers.
#pragma once

#include <comp/strategy/bisection.hpp>
#include <comp/strategy/greedy.hpp>
#include <cstddef>
#include <utility>

namespace comp::strategy {

struct guided {
  std::size_t questions = 40;         // the most questions about times; fewer are asked if answers do not pay
  bisection_settings bisection = {};  // how rejected plans are repaired

  using run = greedy::run;
  run start(search_space over) const { return greedy{}.start(std::move(over)); }
};

static_assert(SearchStrategy<guided>);

}  // namespace comp::strategy
