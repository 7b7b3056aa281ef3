// SPDX-License-Identifier: Apache-2.0
// Searches for the Pareto front of time, memory and loss: the plans that no other plan beats in one of the three
// without being worse in another.
// Use when the fastest plan is not all that counts. A user who keeps the run gets the front from front() at the end.
// The run asks for neighbours of the plans on the front, each plan in turn, and by turns moves one group or a run of
// groups.
// Memory is sample.peak_bytes, loss is sample.loss. A value that was not measured counts as the worst, so without
// memory the front is one of time and loss. Medians and single losses are compared as they are: noise makes the front
// thicker, since plans within noise of each other all stay.
// Source: Knowles and Corne, The Pareto archived evolution strategy, 1999, without its grid.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace comp::strategy {

struct pareto {
  std::size_t trials = 128;   // how many plans are asked for
  bool rejected_too = false;  // true: plans that ran may be on the front although their loss was not accepted
  std::uint64_t seed = 0;

  class run;
  run start(search_space over) const;
};

/// True if `a` is at least as good as `b` in time, memory and loss, and better in one of them.
inline bool dominates(const trial& a, const trial& b) {
  constexpr double worst = std::numeric_limits<double>::infinity();
  const auto bytes = [](const trial& t) { return t.sample.peak_bytes > 0 ? double(t.sample.peak_bytes) : worst; };
  const auto loss = [](const trial& t) { return std::isfinite(t.sample.loss) ? t.sample.loss : worst; };
  const bool as_good = a.seconds <= b.seconds && bytes(a) <= bytes(b) && loss(a) <= loss(b);
  return as_good && (a.seconds < b.seconds || bytes(a) < bytes(b) || loss(a) < loss(b));
}

class pareto::run {
 public:
  run(const pareto& chosen, search_space over)
      : settings_{chosen},
        space_{std::move(over)},
        generator_{chosen.seed},
        left_{at_most_plans(space_, chosen.trials)} {
    origin_.seen.plan = space_.conservative();
    waiting_ = both_ends(space_, asked_);
  }

  /// Asks for the two ends together, then for one plan at a time, because each answer may change the front.
  std::vector<plan> ask(std::size_t at_most) {
    if (at_most > 0 && left_ > 0 && waiting_.empty()) {
      if (auto next = neighbour()) waiting_.push_back(std::move(*next));
    }
    std::vector<plan> plans = take_from(waiting_, std::min(at_most, left_));
    left_ -= plans.size();
    return plans;
  }

  void tell(const trial& seen) {
    if (!(settings_.rejected_too ? seen.sample.ok() : seen.accepted)) return;
    for (const member& m : members_) {
      if (dominates(m.seen, seen)) return;
    }
    std::erase_if(members_, [&](const member& m) { return dominates(seen, m.seen); });
    members_.push_back({.seen = seen});
  }

  /// Returns the front so far, the fastest plan first.
  std::vector<trial> front() const {
    std::vector<trial> members;
    for (const member& m : members_) members.push_back(m.seen);
    std::sort(members.begin(), members.end(), [](const trial& a, const trial& b) {
      return a.seconds != b.seconds ? a.seconds < b.seconds : a.number < b.number;
    });
    return members;
  }

  std::size_t at_most() const { return left_; }

 private:
  // A plan on the front.
  struct member {
    trial seen = {};
    std::size_t group = 0, level = 0;  // its neighbours that differ in one group were asked for up to this one
  };

  // Returns: a neighbour that was not asked for yet, of the next plan on the front that has one; nothing when none has.
  std::optional<plan> neighbour() {
    const std::size_t count = std::max<std::size_t>(members_.size(), 1);
    for (std::size_t tried = 0; tried < count; ++tried, ++turn_) {
      member& m = members_.empty() ? origin_ : members_[turn_ % count];
      const bool run_first = turn_ / count % 2 == 0;
      auto next = run_first ? moved(m) : changed(m);
      if (!next) next = run_first ? changed(m) : moved(m);
      if (!next) continue;
      ++turn_;
      return next;
    }
    return std::nullopt;
  }

  // Returns: a new neighbour by a run of groups, if 32 draws find one.
  std::optional<plan> moved(const member& m) {
    for (int draws = 0; draws < 32 && !space_.groups().empty(); ++draws) {
      plan next = m.seen.plan;
      move_run(space_, next, generator_, space_.groups().size() / 2);
      if (asked_.fresh(space_, next)) return next;
    }
    return std::nullopt;
  }

  // Returns: the next new neighbour by one group.
  std::optional<plan> changed(member& m) {
    for (; m.group < space_.groups().size(); ++m.group, m.level = 0) {
      while (m.level < space_.groups()[m.group].levels.size()) {
        plan next = m.seen.plan;
        space_.set(next, m.group, m.level++);
        if (asked_.fresh(space_, next)) return next;
      }
    }
    return std::nullopt;
  }

  pareto settings_;
  search_space space_;
  std::mt19937_64 generator_;
  std::size_t left_;
  std::vector<plan> waiting_ = {};
  std::vector<member> members_ = {};  // the front
  member origin_ = {};  // the most conservative plan; its neighbours are asked for while the front is empty
  asked_plans asked_ = {};
  std::size_t turn_ = 0;
};

inline pareto::run pareto::start(search_space over) const { return run{*this, std::move(over)}; }

static_assert(SearchStrategy<pareto>);

}  // namespace comp::strategy
