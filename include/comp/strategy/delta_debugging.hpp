// SPDX-License-Identifier: Apache-2.0
// Delta debugging: finds which groups must be raised (put back towards FP32) so that the loss is accepted, starting
// from the plan with all groups on their lowest level.
// Use in stage 1 if few groups harm. If k of n groups do, it asks for about k log n plans, at most 3 n for each level;
// if none does, for two. Only the loss decides: groups that are slower in low precision stay low. In stage 2, which
// accepts every plan that runs, it therefore asks for the two ends of the space alone.
// Zeller's algorithm tests each part and its complement. Here only the complement is tested (all raised groups without
// the part), and no part twice in a round: if raising more groups never harms the loss, the other answers follow. The
// groups found are few, but not always the fewest: if two groups only harm together, raising either is enough.
// With several levels, groups that cannot be on their last level are searched again on the level before.
// Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, TSE 2002 (ddmin); Precimonious,
// Rubio-Gonzalez et al., SC 2013.
#pragma once

#include <algorithm>
#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::strategy {

struct delta_debugging {
  class run;
  run start(search_space over) const;
};

class delta_debugging::run {
 public:
  explicit run(search_space over) : space_{std::move(over)}, floor_{lowest(space_)} {
    for (std::size_t g = 0; g < space_.groups().size(); ++g) {
      if (space_.groups()[g].levels.size() > 1) raised_.push_back(g);
    }
  }

  /// Asks for one plan at a time, because each answer decides the next question. The most conservative plan comes
  /// first.
  std::vector<plan> ask(std::size_t at_most) {
    while (at_most > 0 && !done_) {
      plan next = begun_ ? candidate() : space_.conservative();
      const bool valid = space_.valid(next);
      const auto [known, fresh] = passed_.try_emplace(next, false);
      if (valid && fresh) return {std::move(next)};
      // A plan that was told before, or that may not be tried, is not asked for; its answer is known.
      take(begun_ ? known->second : true);
    }
    return {};
  }

  void tell(const trial& result) {
    passed_[result.plan] = result.accepted;
    take(result.accepted);
  }

  /// At most three plans for each group and level, and the two ends.
  std::size_t at_most() const { return 2 + 3 * count_changes(space_); }

 private:
  std::size_t bound(std::size_t part) const { return part * raised_.size() / parts_; }

  // Returns the plan that tests whether the current part may stay low: the other raised groups are on their first
  // level, all else is as low as it may be.
  plan candidate() const {
    plan p = floor_;
    for (std::size_t i = 0; i < raised_.size(); ++i) {
      if (i < bound(part_) || i >= bound(part_ + 1)) space_.set(p, raised_[i], 0);
    }
    return p;
  }

  // Takes the answer to the current question.
  void take(bool passed) {
    if (!begun_) {
      begun_ = true;
      done_ = !passed || raised_.empty();  // if the most conservative plan is not accepted, no other will be
      return;
    }
    if (passed) {  // the part stays low
      const auto first = raised_.begin() + static_cast<std::ptrdiff_t>(bound(part_));
      const auto last = raised_.begin() + static_cast<std::ptrdiff_t>(bound(part_ + 1));
      raised_.erase(first, last);
      parts_ = std::max<std::size_t>(parts_ - 1, 1);
      if (part_ == parts_ || raised_.empty()) next_round();
    } else if (++part_ == parts_) {
      next_round();
    }
  }

  // Splits the raised groups into twice as many parts; once they were tried one by one, goes on with the next level.
  void next_round() {
    part_ = 0;
    if (raised_.empty()) {
      done_ = true;
    } else if (single_) {
      next_level();
    } else {
      parts_ = std::min(2 * parts_, raised_.size());
      single_ = parts_ == raised_.size();
    }
  }

  // Puts the groups that must be raised one level above the last one that was tried. Those that arrive at their first
  // level are decided.
  void next_level() {
    std::vector<std::size_t> open;
    for (const std::size_t g : raised_) {
      const std::size_t level = space_.level(floor_, g) - 1;
      space_.set(floor_, g, level);
      if (level > 0) open.push_back(g);
    }
    raised_ = std::move(open);
    parts_ = 1;
    single_ = false;
    done_ = raised_.empty();
  }

  search_space space_;
  plan floor_;                                          // each group on the lowest level that is still in question
  std::vector<std::size_t> raised_;                     // groups that have to be above it, as far as is known
  std::size_t parts_ = 1, part_ = 0;                    // number of parts of raised_, and the part that is tried now
  std::unordered_map<plan, bool> passed_ = {};          // answers by plan
  bool begun_ = false, single_ = false, done_ = false;  // single_: each part is one group
};

inline delta_debugging::run delta_debugging::start(search_space over) const { return run{std::move(over)}; }

static_assert(SearchStrategy<delta_debugging>);

}  // namespace comp::strategy
