// SPDX-License-Identifier: Apache-2.0
// The default: proposes whole plans from what operators and casts cost, instead of trying operators one by one.
//   1. Seconds per operator from a profile in FP32 and one in each low precision (else from operations and bytes) give,
//      by a minimum cut, the cheapest plan of the whole graph with every operator free.
//   2. That plan joined with the rules' plans is judged by its losses. What is rejected is mended: by bisection over
//   the
//      operators' sensitivity, or the policy's lists where a backend has none (strategy/mending.hpp).
//   3. Plans of what was accepted are timed in turns, the costs corrected by what was seen, the next cheapest plan
//      proposed, until the best is one that was measured.
// Use it unless the whole space has to be tried (exhaustive) or a paper's algorithm compared (greedy, ...).
// Both stages in one: as a stage 2, where only times are asked for, it is `greedy`. Never below a rule-based plan that
// is accepted, from which it starts. Source: design.md, section 5; none of the systems compared has it.
#pragma once

#include <comp/strategy/greedy.hpp>
#include <comp/strategy/mending.hpp>
#include <cstddef>
#include <utility>

namespace comp::strategy {

struct guided {
  std::size_t questions = 40;  // about times, at most: fewer are asked where their answers do not pay
  double memory_worth = 0.01;  // of FP32's batch: what time the memory of all operators' outputs is worth
  mending_settings mend = {};

  using run = greedy::run;
  run start(search_space over) const { return greedy{}.start(std::move(over)); }
};

static_assert(SearchStrategy<guided>);

}  // namespace comp::strategy
