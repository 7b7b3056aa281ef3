// SPDX-License-Identifier: Apache-2.0
// Which groups must go back to FP32 so that the loss is accepted: delta debugging from the lowest plan.
// Use in stage 1 where few groups harm: k of n cost about k log n plans, at most 3 n a level, and a plan that is
// accepted all low costs two. Only the loss counts: groups that are slower in low precision stay low, so in stage 2,
// where every plan that runs is accepted, it asks for the two ends alone. Of Zeller's two tests only the complement's
// is run, and no part is tried again in a round: where raising more never harms the loss, the others' answers are
// known. The groups found are then few, but not the fewest there are: harm of pairs goes away with either. With several
// levels: what may not be on its last level is searched again on the one before. Source: Zeller and Hildebrandt,
// Simplifying and isolating failure-inducing input, TSE 2002 (ddmin); Precimonious, Rubio-Gonzalez et al., SC 2013.
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

  /// One plan at a time: each answer decides the next question. The most conservative one comes first.
  std::vector<plan> ask(std::size_t at_most) {
    while (at_most > 0 && !done_) {
      plan next = begun_ ? candidate() : space_.conservative();
      const bool valid = space_.valid(next);
      const auto [known, fresh] = passed_.try_emplace(next, false);
      if (valid && fresh) return {std::move(next)};
      take(begun_ ? known->second : true);  // a conservative plan that may not be tried says nothing
    }
    return {};
  }

  void tell(const trial& seen) {
    passed_[seen.plan] = seen.accepted;
    take(seen.accepted);
  }

  /// Three plans for each group and level at most, and the two ends.
  std::size_t at_most() const { return 2 + 3 * count_changes(space_); }

 private:
  std::size_t bound(std::size_t part) const { return part * raised_.size() / parts_; }

  // The raised groups without the part in question on their first level, everything else as low as it may be.
  plan candidate() const {
    plan p = floor_;
    for (std::size_t i = 0; i < raised_.size(); ++i) {
      if (i < bound(part_) || i >= bound(part_ + 1)) space_.set(p, raised_[i], 0);
    }
    return p;
  }

  void take(bool passed) {
    if (!begun_) {
      begun_ = true;
      done_ = !passed || raised_.empty();  // nothing can be accepted when the most conservative plan is not
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

  // What must be raised is put one level above the last that was tried; on the first level there is nothing to ask.
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
  plan floor_;                        // every group on the lowest level that is still in question
  std::vector<std::size_t> raised_;   // groups that must be above it, as far as is known
  std::size_t parts_ = 1, part_ = 0;  // they are tried in so many parts, this one now
  std::unordered_map<plan, bool> passed_ = {};
  bool begun_ = false, single_ = false, done_ = false;
};

inline delta_debugging::run delta_debugging::start(search_space over) const { return run{std::move(over)}; }

static_assert(SearchStrategy<delta_debugging>);

}  // namespace comp::strategy
