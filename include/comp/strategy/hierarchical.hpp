// SPDX-License-Identifier: Apache-2.0
// Hierarchical search: tries all groups low, then halves, then halves of halves, cut where the scopes in their names
// change ("block1.attention.query"). A part that is accepted and not clearly slower stays low; another one is split and
// tried in smaller parts, down to single groups.
// Use if harmful operators lie together (in a block, in an attention) and groups are named by scope. If harm is
// scattered it asks for as many plans as one group at a time would, two at most for each group and level. Unlike delta
// debugging it also raises parts that are clearly slower in low precision.
// Each part is tried together with all parts that stay low, so the final plan was run as a whole. CRAFT tries parts
// alone and then joins them, which can harm although no part alone does.
// With several levels, groups that cannot be on their last level are tried in the same way on the level before.
// Source: CRAFT, Lam, Hollingsworth, de Supinski and LeGendre, ICS 2013 (breadth-first search of a program's
// structure).
#pragma once

#include <algorithm>
#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::strategy {

struct hierarchical {
  class run;
  run start(search_space over) const;
};

class hierarchical::run {
  using part = std::vector<std::size_t>;  // indices of groups, in the order of execution

 public:
  explicit run(search_space over) : space_{std::move(over)}, kept_{space_.conservative()} {
    for (std::size_t g = 0; g < space_.groups().size(); ++g) failed_.push_back(g);
  }

  /// Asks for one plan at a time, because each answer decides the next question. The most conservative plan comes
  /// first.
  std::vector<plan> ask(std::size_t at_most) {
    if (at_most > 0 && !begun_) {
      begun_ = true;
      if (asked_.fresh(space_, kept_)) return {kept_};
    }
    while (at_most > 0 && (!parts_.empty() || next_level())) {
      plan next = with(parts_.front());
      if (asked_.fresh(space_, next)) return {std::move(next)};
      split(std::exchange(parts_.front(), {}));  // the plan was refused before, or may not be tried
      parts_.pop_front();
    }
    return {};
  }

  void tell(const trial& result) {
    if (parts_.empty()) {  // this is the most conservative plan
      best_ = result;
      return;
    }
    const part tried = std::exchange(parts_.front(), {});
    parts_.pop_front();
    if (!result.accepted || (best_ && clearly_faster(*best_, result))) return split(tried);
    kept_ = result.plan;
    best_ = result;
  }

  /// At most two plans for each group and level, and the most conservative one.
  std::size_t at_most() const { return 1 + 2 * count_changes(space_); }

 private:
  void in_order_of_execution(part& groups) const {
    std::ranges::sort(groups, {}, [this](std::size_t g) { return space_.groups()[g].operators.front(); });
  }

  plan with(const part& groups) const {
    plan p = kept_;
    for (const std::size_t g : groups) space_.set(p, g, level_of(g));
    return p;
  }
  std::size_t level_of(std::size_t g) const { return space_.groups()[g].levels.size() - above_last_; }

  void split(const part& of) {
    if (of.size() == 1) return failed_.push_back(of.front());
    const auto middle = of.begin() + static_cast<std::ptrdiff_t>(cut(of));
    parts_.emplace_back(of.begin(), middle);
    parts_.emplace_back(middle, of.end());
  }

  // Returns the place to cut a part: a change of the first scope that not all names share, as near the middle as can
  // be.
  std::size_t cut(const part& of) const {
    const std::size_t same = shared(of);
    const auto scope = [&](std::size_t i) {
      const std::string_view rest = std::string_view{space_.groups()[of[i]].name}.substr(same);
      return rest.substr(0, rest.find('.'));
    };
    const std::size_t middle = of.size() / 2;
    for (std::size_t off = 0; off < middle; ++off) {
      if (scope(middle - off - 1) != scope(middle - off)) return middle - off;
      if (middle + off < of.size() && scope(middle + off - 1) != scope(middle + off)) return middle + off;
    }
    return middle;
  }

  // Returns the length of the scopes that all names share, dots included.
  std::size_t shared(const part& of) const {
    std::string_view same = space_.groups()[of.front()].name;
    for (const std::size_t g : of) {
      const std::string_view name = space_.groups()[g].name;
      const auto differ = std::mismatch(same.begin(), same.end(), name.begin(), name.end()).first;
      same = same.substr(0, static_cast<std::size_t>(differ - same.begin()));
    }
    const auto dot = same.rfind('.');
    return dot == std::string_view::npos ? 0 : dot + 1;
  }

  // Goes on with the groups that could not be on the last level that was tried, one level before it. Returns: false
  // when there are none.
  bool next_level() {
    ++above_last_;
    part open;
    for (const std::size_t g : failed_) {
      if (space_.groups()[g].levels.size() > above_last_) open.push_back(g);
    }
    failed_.clear();
    in_order_of_execution(open);
    if (!open.empty()) parts_.push_back(std::move(open));
    return !parts_.empty();
  }

  search_space space_;
  plan kept_;
  std::optional<trial> best_ = {};  // the result of kept_, the best plan so far
  std::deque<part> parts_ = {};     // parts to try, the largest first
  part failed_ = {};                // groups that could not be low by themselves
  std::size_t above_last_ = 0;      // parts are tried on this level, counted from the last one: 1 is the last
  asked_plans asked_ = {};
  bool begun_ = false;
};

inline hierarchical::run hierarchical::start(search_space over) const { return run{std::move(over)}; }

static_assert(SearchStrategy<hierarchical>);

}  // namespace comp::strategy
