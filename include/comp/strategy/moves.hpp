// SPDX-License-Identifier: Apache-2.0
// What strategies do to plans of a space, whatever their idea: its low end, a plan drawn, a run of groups moved, and an
// order of plans by what they gave. Use it in a strategy of your own; searches need nothing of it.
// The order goes by medians: comp::clearly_faster is no order (a ~ b and b ~ c do not give a ~ c), so it decides where
// one plan replaces another and is built upon, and medians decide who stays among many. Draws are the same on every
// standard library. Source: none.
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

/// Every group on its last, least conservative level.
inline plan lowest(const search_space& space) {
  plan p = space.base();
  for (std::size_t g = 0; g < space.groups().size(); ++g) space.set(p, g, space.groups()[g].levels.size() - 1);
  return p;
}

/// How many changes of one group by one level lead from the conservative plan to the lowest.
inline std::size_t count_changes(const search_space& space) {
  std::size_t changes = 0;
  for (const op_group& group : space.groups()) changes += group.levels.size() - 1;
  return changes;
}

/// `trials`, or the number of plans in the space where that is less.
inline std::size_t at_most_plans(const search_space& space, std::size_t trials) {
  return static_cast<std::size_t>(std::min<std::uint64_t>(trials, space.size().value_or(trials)));
}

/// Uniform in [0, 1).
inline double fraction(std::mt19937_64& generator) { return static_cast<double>(generator() >> 11) * 0x1p-53; }

/// A plan of which a share of the groups, itself drawn, is off its first level: so plans near both ends come as often
/// as those between, which uniform draws (search_space::random) never leave in a large space.
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

/// Puts group `g` of `p` on another level, drawn; nothing happens where it has one level.
inline void move_group(const search_space& space, plan& p, std::size_t g, std::mt19937_64& generator) {
  const std::size_t levels = space.groups()[g].levels.size();
  if (levels < 2) return;
  space.set(p, g, (space.level(p, g) + 1 + search_space::below(generator, levels - 1)) % levels);
}

/// Puts a run of 1, 2, 4, ... at most `longest` neighbouring groups on one level, place, length and level drawn: what
/// lies together shares casts. A group with fewer levels takes its last. Requires: a space with a group.
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

/// Plans that were asked for, so that none is asked for twice.
class asked_plans {
 public:
  /// True for a valid plan of `space` that comes for the first time; from then on it counts as asked.
  bool fresh(const search_space& space, const plan& p) { return space.valid(p) && asked_.insert(p).second; }

  /// True when no plan of `space` is left, or when so many draws in a row gave no fresh one that it looks so.
  bool exhausted(const search_space& space, std::size_t misses) const {
    const auto size = space.size();
    return misses >= most_misses || (size && asked_.size() >= *size);
  }

 private:
  static constexpr std::size_t most_misses = 1000;
  std::unordered_set<plan> asked_;
};

/// The most conservative and the lowest plan, those that may be asked for, in reverse: to be taken by take_from.
inline std::vector<plan> both_ends(const search_space& space, asked_plans& asked) {
  std::vector<plan> ends;
  for (plan p : {space.conservative(), lowest(space)}) {
    if (asked.fresh(space, p)) ends.insert(ends.begin(), std::move(p));
  }
  return ends;
}

/// What a plan gave, as far as an order needs it.
struct scored {
  comp::plan plan = {};
  bool accepted = false;
  double seconds = std::numeric_limits<double>::infinity();
  double loss = std::numeric_limits<double>::infinity();
  std::size_t number = 0;  // counts what was told

  scored() = default;
  scored(const trial& t, std::size_t count)
      : plan{t.plan},
        accepted{t.accepted},
        seconds{t.seconds},
        loss{std::isfinite(t.sample.loss) ? t.sample.loss : std::numeric_limits<double>::infinity()},
        number{count} {}

  /// Accepted plans come first, by their time; the others by their loss; of equals the one that was told first.
  friend bool operator<(const scored& a, const scored& b) {
    if (a.accepted != b.accepted) return a.accepted;
    const double left = a.accepted ? a.seconds : a.loss, right = a.accepted ? b.seconds : b.loss;
    return left != right ? left < right : a.number < b.number;
  }
};

/// Keeps the first `most` of `field` in that order.
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
