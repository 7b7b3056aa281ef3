// SPDX-License-Identifier: Apache-2.0
// Helpers for strategies: the low end of a space, drawing plans, moving runs of groups, remembering which plans were
// asked for, and ordering plans by their results. Use them in a strategy of your own; a search itself does not need
// them.
// The order compares median times. comp::clearly_faster, which looks at intervals, is not transitive (a as fast as b,
// and b as fast as c, do not make a as fast as c) and so cannot sort. Use it to replace one plan by another; use the
// order to keep the best of many plans.
// Draws are the same with every standard library.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <comp/core/search_space.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <unordered_set>
#include <utility>
#include <vector>

namespace comp::strategy {

/// Returns the plan with each group on its last level, the least conservative one.
inline plan lowest(const search_space& space) {
  plan p = space.base();
  for (std::size_t g = 0; g < space.groups().size(); ++g) space.set(p, g, space.groups()[g].levels.size() - 1);
  return p;
}

/// Returns how many changes of one group by one level lead from the most conservative plan to the lowest.
inline std::size_t count_changes(const search_space& space) {
  std::size_t changes = 0;
  for (const op_group& group : space.groups()) changes += group.levels.size() - 1;
  return changes;
}

/// Returns `trials`, or the number of plans in the space if it has fewer.
inline std::size_t at_most_plans(const search_space& space, std::size_t trials) {
  return static_cast<std::size_t>(std::min<std::uint64_t>(trials, space.size().value_or(trials)));
}

/// Draws uniformly from [0, 1).
inline double fraction(std::mt19937_64& generator) { return static_cast<double>(generator() >> 11) * 0x1p-53; }

/// Draws a plan: first the share of groups that are lowered, then which groups. So plans near both ends come as often
/// as those in the middle. In a large space, uniform draws (search_space::random) nearly always lower about half of the
/// groups.
inline plan draw_plan(const search_space& space, std::mt19937_64& generator) {
  plan p = space.base();
  const double share = fraction(generator);
  for (std::size_t g = 0; g < space.groups().size(); ++g) {
    const std::size_t levels = space.groups()[g].levels.size();
    const bool moved = fraction(generator) < share && levels > 1;
    space.set(p, g, moved ? 1 + search_space::below(generator, levels - 1) : 0);
  }
  return p;
}

/// Puts group `g` of `p` on another level, which is drawn. Does nothing if it has only one.
inline void move_group(const search_space& space, plan& p, std::size_t g, std::mt19937_64& generator) {
  const std::size_t levels = space.groups()[g].levels.size();
  if (levels < 2) return;
  space.set(p, g, (space.level(p, g) + 1 + search_space::below(generator, levels - 1)) % levels);
}

/// Puts a run of 1, 2, 4, ... neighbouring groups, `longest` at most, on one level; place, length and level are drawn.
/// Neighbours move together because they share casts. A group with fewer levels gets its last one.
/// Requires: the space has a group.
inline void move_run(const search_space& space, plan& p, std::mt19937_64& generator, std::size_t longest) {
  const auto& groups = space.groups();
  const std::size_t first = search_space::below(generator, groups.size());
  const auto lengths = static_cast<std::size_t>(std::bit_width(std::clamp<std::size_t>(longest, 1, groups.size())));
  const std::size_t length = std::size_t{1} << search_space::below(generator, lengths);
  if (length == 1) return move_group(space, p, first, generator);
  const std::size_t level = search_space::below(generator, groups[first].levels.size());
  for (std::size_t g = first; g < std::min(first + length, groups.size()); ++g) {
    space.set(p, g, std::min(level, groups[g].levels.size() - 1));
  }
}

/// Remembers which plans were asked for, so that none is asked for twice.
class asked_plans {
 public:
  /// Returns: true for a valid plan of `space` that was not asked for before; from then on it counts as asked for, as
  /// an invalid one does.
  bool fresh(const search_space& space, const plan& p) { return asked_.insert(p).second && space.valid(p); }

  /// Returns: true when no plan of `space` is left, or when the last `misses` draws gave no new plan and are so many
  /// that there probably is none.
  bool exhausted(const search_space& space, std::size_t misses) const {
    const auto size = space.size();
    return misses >= 1000 || (size && asked_.size() >= *size);
  }

 private:
  std::unordered_set<plan> asked_;
};

/// Returns the most conservative and the lowest plan, as far as they may be asked for, in reverse order for take_from.
inline std::vector<plan> both_ends(const search_space& space, asked_plans& asked) {
  std::vector<plan> ends;
  if (plan p = space.conservative(); asked.fresh(space, p)) ends.push_back(std::move(p));
  if (plan p = lowest(space); asked.fresh(space, p)) ends.insert(ends.begin(), std::move(p));
  return ends;
}

/// A plan with the part of its result that the order needs.
struct scored {
  comp::plan plan = {};
  bool accepted = false;
  double seconds = std::numeric_limits<double>::infinity();  // median time of a batch
  double loss = std::numeric_limits<double>::infinity();     // mean loss
  std::size_t number = 0;                                    // the number of the result, in the order of telling

  scored() = default;
  scored(const trial& t, std::size_t count)
      : plan{t.plan},
        accepted{t.accepted},
        seconds{t.seconds},
        loss{std::isfinite(t.sample.loss) ? t.sample.loss : std::numeric_limits<double>::infinity()},
        number{count} {}

  /// Accepted plans come first, ordered by time, then the others, ordered by loss. Of equal plans the one that was told
  /// first comes first.
  friend bool operator<(const scored& a, const scored& b) {
    if (a.accepted != b.accepted) return a.accepted;
    const double left = a.accepted ? a.seconds : a.loss, right = a.accepted ? b.seconds : b.loss;
    return left != right ? left < right : a.number < b.number;
  }
};

/// Sorts `field` in that order and keeps the first `most`.
inline void keep_best(std::vector<scored>& field, std::size_t most) {
  std::sort(field.begin(), field.end());
  if (field.size() > most) field.erase(field.begin() + static_cast<std::ptrdiff_t>(most), field.end());
}

/// Takes up to `at_most` plans from the end of `waiting`, which holds them in reverse.
inline std::vector<plan> take_from(std::vector<plan>& waiting, std::size_t at_most) {
  std::vector<plan> taken;
  while (taken.size() < at_most && !waiting.empty()) {
    taken.push_back(std::move(waiting.back()));
    waiting.pop_back();
  }
  return taken;
}

}  // namespace comp::strategy
