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

/// `p` with FP32 wherever `keep` says no.
template <class Keep>
plan raised(plan p, Keep keep) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (!keep(i)) p[i] = precision::fp32;
  }
  return p;
}

/// Returns: `p`; then without its deny-operators; then with allow-operators alone; then all FP32. None twice.
inline std::vector<plan> conservative_ladder(const plan& p, std::span<const decision> decisions) {
  std::vector<plan> ladder{p};
  const auto add = [&](plan next) {
    if (std::find(ladder.begin(), ladder.end(), next) == ladder.end()) ladder.push_back(std::move(next));
  };
  add(raised(p, [&](std::size_t i) { return decisions[i].category != category::deny; }));
  add(raised(p, [&](std::size_t i) { return decisions[i].category == category::allow; }));
  add(plan{p.size()});
  return ladder;
}

}  // namespace comp
