// SPDX-License-Identifier: Apache-2.0
// Successive halving: starts with many plans, and in each round keeps the faster half of the accepted ones and looks
// more closely at their surroundings. A round has the same number of new plans each time, so each plan that is left
// gets twice as many neighbours as in the round before.
// In Jamieson and Talwalkar's method the plans that are left are trained longer. Here a strategy asks for a plan
// without saying how long to train it, and never twice for the same plan, so their neighbours are tried instead. Bad
// plans are cut early by the search itself (search_settings::cut), whatever the strategy.
// Use if many plans can be run at a time and nothing is known about the operators: all plans of a round are asked for
// at once. It asks for `plans` * (1 + log2(plans) / 2) plans in all.
// Source: Jamieson and Talwalkar, Non-stochastic best arm identification, AISTATS 2016, with that change.
#pragma once

#include <algorithm>
#include <bit>
#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace comp::strategy {

struct successive_halving {
  std::size_t plans = 32;  // plans of the first round; later rounds have half as many; fewer than 2 count as 2
  std::uint64_t seed = 0;

  class run;
  run start(search_space over) const;
};

class successive_halving::run {
 public:
  run(const successive_halving& chosen, search_space over)
      : plans_{std::max<std::size_t>(chosen.plans, 2)}, space_{std::move(over)}, generator_{chosen.seed} {
    waiting_ = both_ends(space_, asked_);
    std::reverse(waiting_.begin(), waiting_.end());
    fill(plans_, [this] { return draw_plan(space_, generator_); });
    std::reverse(waiting_.begin(), waiting_.end());
  }

  /// Asks for a whole round at once; plans beyond `at_most` come with the next call. The two ends come first.
  std::vector<plan> ask(std::size_t at_most) {
    while (at_most > 0 && waiting_.empty() && survivors() > 1) next_round();
    return take_from(waiting_, at_most);
  }

  void tell(const trial& seen) { field_.emplace_back(seen, count_++); }

  std::size_t at_most() const {
    const auto rounds = static_cast<std::size_t>(std::bit_width(plans_) - 1);
    return plans_ + rounds * (plans_ / 2);
  }

 private:
  std::size_t survivors() const { return plans_ >> round_; }

  // Keeps the fastest accepted plans, and draws neighbours of each. The neighbours get nearer from round to round.
  void next_round() {
    ++round_;
    keep_best(field_, std::max<std::size_t>(survivors(), 1));
    const auto rejected = std::find_if(field_.begin(), field_.end(), [](const scored& s) { return !s.accepted; });
    if (rejected != field_.begin()) field_.erase(rejected, field_.end());
    if (field_.empty() || space_.groups().empty()) return;
    const std::size_t reach = std::max<std::size_t>(space_.groups().size() >> (round_ + 1), 1);
    std::size_t at = 0;
    fill(plans_ / 2, [&] {
      plan near = field_[at++ % field_.size()].plan;
      move_run(space_, near, generator_, reach);
      return near;
    });
    std::reverse(waiting_.begin(), waiting_.end());
  }

  // Draws plans until `wanted` new ones wait, or none seems to be left.
  void fill(std::size_t wanted, auto draw) {
    for (std::size_t misses = 0; waiting_.size() < wanted && !asked_.exhausted(space_, misses);) {
      plan next = draw();
      const bool fresh = asked_.fresh(space_, next);
      if (fresh) waiting_.push_back(std::move(next));
      misses = fresh ? 0 : misses + 1;
    }
  }

  std::size_t plans_;
  search_space space_;
  std::mt19937_64 generator_;
  std::vector<plan> waiting_ = {};  // plans to ask for, in reverse order
  std::vector<scored> field_ = {};  // the plans that were kept, and the results of their neighbours
  asked_plans asked_ = {};
  std::size_t round_ = 0, count_ = 0;
};

inline successive_halving::run successive_halving::start(search_space over) const {
  return run{*this, std::move(over)};
}

static_assert(SearchStrategy<successive_halving>);

}  // namespace comp::strategy
