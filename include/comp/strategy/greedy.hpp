// SPDX-License-Identifier: Apache-2.0
// Greedy search: changes one group at a time, starting from the better of the two ends of the space, and keeps a change
// only if it is clearly faster. It asks for about as many plans as there are groups.
// Both ends are tried, because lowering a single operator can cost two casts, and lowering its neighbours, too, none:
// from all FP32 each single step may then look like a loss. Groups are taken in the order of the space, in which a
// search puts the most expensive first.
// Source: sorted greedy as in ADAPT and neural-compressor; the CoMP paper enumerates.
#pragma once

#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace comp::strategy {

struct greedy {
  class run;
  run start(search_space over) const;
};

class greedy::run {
 public:
  explicit run(search_space over) : space_{std::move(over)}, ends_{both_ends(space_, asked_)} {}

  /// Asks for the two ends together, then for one plan at a time, because each answer decides the next question.
  std::vector<plan> ask(std::size_t at_most) {
    std::vector<plan> plans = take_from(ends_, at_most);
    while (plans.empty()) {
      auto next = step();
      if (!next) break;
      if (asked_.fresh(space_, *next)) plans.push_back(std::move(*next));
    }
    return plans;
  }

  std::size_t at_most() const { return ends_.size() + count_changes(space_); }

  void tell(const trial& result) {
    if (!best_ || clearly_faster(result, *best_)) best_ = result;
  }

 private:
  // Returns: the best plan so far with the next group on its next level; nothing after the last group.
  std::optional<plan> step() {
    const auto& groups = space_.groups();
    if (group_ == groups.size()) return std::nullopt;
    plan next = best_ ? best_->plan : space_.conservative();
    space_.set(next, group_, level_);
    if (++level_ == groups[group_].levels.size()) {
      level_ = 0;
      ++group_;
    }
    return next;
  }

  search_space space_;
  asked_plans asked_ = {};
  std::vector<plan> ends_;  // the first plans to ask for, in reverse order
  std::optional<trial> best_;
  std::size_t group_ = 0, level_ = 0;
};

inline greedy::run greedy::start(search_space over) const { return run{std::move(over)}; }

static_assert(SearchStrategy<greedy>);

}  // namespace comp::strategy
