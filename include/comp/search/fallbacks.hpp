// SPDX-License-Identifier: Apache-2.0
// Ever more conservative plans, for the guard of post-training.
#pragma once

#include <algorithm>
#include <comp/core/plan.hpp>
#include <comp/search/candidate_space.hpp>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace comp {

/// Returns: `p`; then without its deny-operators; then with allow-operators alone; then `base`, the most conservative
/// plan that runs, which is also what is meant by "without". None twice.
inline std::vector<plan> conservative_ladder(const plan& p, std::span<const decision> decisions, const plan& base) {
  std::vector<plan> ladder{p};
  const auto add = [&](auto keeps) {
    plan next = p.as_autocast(false);
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (!keeps(decisions[i].category)) next[i] = base[i];
    }
    if (std::find(ladder.begin(), ladder.end(), next) == ladder.end()) ladder.push_back(std::move(next));
  };
  add([](category c) { return c != category::deny; });
  add([](category c) { return c == category::allow; });
  add([](category) { return false; });
  return ladder;
}

}  // namespace comp
