// SPDX-License-Identifier: Apache-2.0
// Greedy with a memory: group after group, but the `width` best plans so far go on instead of one.
// Use where groups only pay together (casts between neighbours) and greedy stops short: a first step that costs a
// little survives until the second pays. Costs `width` times greedy's plans. Groups are taken in the order of the
// space: the search puts the most expensive first. Plans that are not accepted go on only while fewer than `width` are.
// Not here: undoing many changes at once (annealing, genetic).
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
  std::size_t width = 4;   // plans that go on; 0 counts as 1
  std::size_t passes = 1;  // over all groups; ends earlier when a pass finds nothing better

  class run;
  run start(search_space over) const;
};

class beam::run {
 public:
  run(const beam& chosen, search_space over) : settings_{chosen}, space_{std::move(over)} {
    settings_.width = std::max<std::size_t>(settings_.width, 1);
    settings_.passes = std::max<std::size_t>(settings_.passes, 1);
    waiting_ = both_ends(space_, asked_);
  }

  /// The plans of one group at a time; those that do not fit `at_most` come with the next call.
  std::vector<plan> ask(std::size_t at_most) {
    while (at_most > 0 && waiting_.empty() && next_group()) expand();
    return take_from(waiting_, at_most);
  }

  void tell(const trial& seen) { beam_.emplace_back(seen, count_++); }

  /// Both ends, and for each pass and group the other levels of `width` plans.
  std::size_t at_most() const { return 2 + settings_.width * settings_.passes * count_changes(space_); }

 private:
  bool next_group() {
    keep_best(beam_, settings_.width);
    if (beam_.empty()) return false;
    if (group_ < space_.groups().size()) return true;
    group_ = 0;
    const bool better = best_before_ != beam_.front().number;
    best_before_ = beam_.front().number;
    return ++pass_ < settings_.passes && better && !space_.groups().empty();
  }

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

  beam settings_;
  search_space space_;
  std::vector<plan> waiting_ = {};  // to be asked for, the last first
  std::vector<scored> beam_ = {};   // and, until the next group, what their changes gave
  asked_plans asked_ = {};
  std::size_t group_ = 0, pass_ = 0, count_ = 0, best_before_ = 0;
};

inline beam::run beam::start(search_space over) const { return run{*this, std::move(over)}; }

static_assert(SearchStrategy<beam>);

}  // namespace comp::strategy
