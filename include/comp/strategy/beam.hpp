// SPDX-License-Identifier: Apache-2.0
// Beam search: like greedy it decides one group after the other, but it keeps the `width` best plans so far instead of
// one.
// Use if groups only pay together, because of the casts between them, and greedy stops too early: a first change that
// costs a little stays in the beam until the second one pays. It asks for `width` times as many plans as greedy.
// Groups are taken in the order of the space, in which a search puts the most expensive first. A plan that was not
// accepted stays in the beam only while there are fewer than `width` accepted ones.
// Source: Lowerre, The HARPY speech recognition system, 1976; greedy.hpp is the width of 1.
#pragma once

#include <algorithm>
#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <utility>
#include <vector>

namespace comp::strategy {

struct beam {
  std::size_t width = 4;  // how many plans are kept; 0 counts as 1

  class run;
  run start(search_space over) const;
};

class beam::run {
 public:
  run(const beam& chosen, search_space over)
      : width_{std::max<std::size_t>(chosen.width, 1)}, space_{std::move(over)}, waiting_{both_ends(space_, asked_)} {}

  /// Asks for all plans that change one group at once; those beyond `at_most` come with the next call.
  std::vector<plan> ask(std::size_t at_most) {
    while (at_most > 0 && waiting_.empty() && next_group()) expand();
    return take_from(waiting_, at_most);
  }

  void tell(const trial& result) { beam_.emplace_back(result, count_++); }

  /// Both ends of the space, and for each group the other levels of `width` plans.
  std::size_t at_most() const { return 2 + width_ * count_changes(space_); }

 private:
  // Keeps the best plans and goes on to the next group. Returns: false after the last one.
  bool next_group() {
    keep_best(beam_, width_);
    return !beam_.empty() && group_ < space_.groups().size();
  }

  // Makes the plans that differ from those of the beam in the current group.
  void expand() {
    for (const scored& member : beam_) {
      for (std::size_t level = 0; level < space_.groups()[group_].levels.size(); ++level) {
        plan next = member.plan;
        space_.set(next, group_, level);
        if (asked_.fresh(space_, next)) waiting_.push_back(std::move(next));
      }
    }
    std::reverse(waiting_.begin(), waiting_.end());
    ++group_;
  }

  std::size_t width_;
  search_space space_;
  asked_plans asked_ = {};
  std::vector<plan> waiting_;      // plans to ask for, in reverse order
  std::vector<scored> beam_ = {};  // the plans that are kept and, until the next group, their changed plans
  std::size_t group_ = 0, count_ = 0;
};

inline beam::run beam::start(search_space over) const { return run{*this, std::move(over)}; }

static_assert(SearchStrategy<beam>);

}  // namespace comp::strategy
