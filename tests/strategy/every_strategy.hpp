// SPDX-License-Identifier: Apache-2.0
// Worlds that strategies are tried in, with what is known of them: harmful groups, casts, pairs.
#pragma once

#include <comp/core/search_space.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "spaces.hpp"

namespace worlds {

using comp::plan;
using comp::precision;
using comp::trial;
using answer = std::function<trial(const plan&)>;

/// Groups of two levels, FP32 and BF16, with the given names.
inline comp::search_space named(const std::vector<std::string>& names) {
  std::vector<comp::op_group> groups;
  for (std::size_t g = 0; g < names.size(); ++g) {
    groups.push_back({names[g], {static_cast<std::uint32_t>(g)}, {precision::fp32, precision::bf16}});
  }
  return {plan{names.size()}, std::move(groups)};
}

/// A second for each operator in FP32, `low` in less, `cast` for each two neighbours that differ. Not accepted if one
/// of `harmful` is low; the loss counts them.
inline answer chain(std::vector<std::size_t> harmful = {}, double low = 0.5, double cast = 0) {
  return [=](const plan& p) {
    double seconds = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      seconds += comp::is_low(p[i]) ? low : 1;
      if (i > 0 && p[i] != p[i - 1]) seconds += cast;
    }
    trial t = spaces::accepted_in(p, seconds);
    t.sample.loss = 1;
    for (const std::size_t i : harmful) t.sample.loss += comp::is_low(p[i]) ? 1 : 0;
    t.accepted = t.sample.loss == 1;
    return t;
  };
}

struct answered {
  std::vector<plan> plans = {};
  trial best = {};
};

/// All that a strategy asks for, and the accepted trial that was fastest.
answered search(const auto& strategy, const comp::search_space& space, const answer& judge) {
  answered got;
  got.plans = spaces::asked(strategy, space, 1, [&](const plan& p) {
    const trial t = judge(p);
    if (t.accepted && (!got.best.accepted || t.seconds < got.best.seconds)) got.best = t;
    return t;
  });
  return got;
}

}  // namespace worlds
