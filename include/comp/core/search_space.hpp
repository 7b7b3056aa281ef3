// SPDX-License-Identifier: Apache-2.0
// The set of plans that a strategy may try. Operators that change together form a group, and each group has a list of
// precisions, its levels. The plans are never listed, so a space of 2^1000 plans takes only the memory of its groups.
#pragma once

#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/plan.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Operators that always share one precision. `levels` are the precisions to choose from, most conservative first.
struct op_group {
  std::string name = {};
  std::vector<std::uint32_t> operators = {};
  std::vector<precision> levels = {};
};

class search_space {
 public:
  search_space() = default;

  /// `base` gives the precision of each operator that is in no group. `valid` returns false for plans that must not be
  /// tried, for instance because an operator of theirs does not run; empty: all plans may be.
  /// Throws: `space_error` for an empty group, a group without levels, or an operator that is out of range or in two
  /// groups.
  search_space(plan base, std::vector<op_group> groups, std::function<bool(const plan&)> valid = {})
      : base_{std::move(base)}, groups_{std::move(groups)}, valid_{std::move(valid)} {
    std::vector<bool> taken(base_.size());
    for (const op_group& group : groups_) {
      require<space_error>(!group.levels.empty() && !group.operators.empty(),
                           "group \"{}\" has {} operators and {} levels (each needs at least one): drop the group",
                           group.name, group.operators.size(), group.levels.size());
      for (const auto op : group.operators) {
        require<space_error>(
            op < base_.size() && !taken[op],
            "operator {} of group \"{}\" is out of range or in two groups (the plan has {} operators): "
            "give each operator to one group",
            op, group.name, base_.size());
        taken[op] = true;
      }
    }
  }

  const plan& base() const { return base_; }
  const std::vector<op_group>& groups() const { return groups_; }
  bool valid(const plan& p) const { return !valid_ || valid_(p); }

  /// Returns: the number of plans, invalid ones included; nothing when it does not fit 63 bits.
  std::optional<std::uint64_t> size() const {
    std::uint64_t product = 1;
    for (const op_group& group : groups_) {
      if (product > (std::uint64_t{1} << 63) / group.levels.size()) return std::nullopt;
      product *= group.levels.size();
    }
    return product;
  }

  /// Returns the number of plans as messages show it: "12", "2^100.0".
  std::string size_text() const {
    if (const auto count = size(); count && *count < 1'000'000'000) return fmt::format("{}", *count);
    double bits = 0;
    for (const op_group& group : groups_) bits += std::log2(static_cast<double>(group.levels.size()));
    return fmt::format("2^{:.1f}", bits);
  }

  /// Gives the operators of group `g` the precision of its level `level`, in `p`.
  void set(plan& p, std::size_t g, std::size_t level) const {
    for (const auto op : groups_[g].operators) p[op] = groups_[g].levels[level];
  }

  /// Returns: the level of group `g` in `p`; 0, the most conservative one, if `p` has a precision that is not a level.
  std::size_t level(const plan& p, std::size_t g) const {
    const auto& levels = groups_[g].levels;
    const auto at = std::find(levels.begin(), levels.end(), p[groups_[g].operators.front()]);
    return at == levels.end() ? 0 : static_cast<std::size_t>(at - levels.begin());
  }

  /// Returns the plan with each group on its first level, the most conservative one.
  plan conservative() const {
    plan p = base_;
    for (std::size_t g = 0; g < groups_.size(); ++g) set(p, g, 0);
    return p;
  }

  /// Returns the plan of this space that is nearest to `p`: groups have their level in `p`, other operators their
  /// precision in the base.
  plan project(const plan& p) const {
    plan result = base_;
    for (std::size_t g = 0; g < groups_.size(); ++g) set(result, g, level(p, g));
    return result;
  }

  /// Draws a plan uniformly, invalid ones included. One state of the generator gives the same plan with every standard
  /// library, which std::uniform_int_distribution does not promise.
  plan random(std::mt19937_64& generator) const {
    plan p = base_;
    for (std::size_t g = 0; g < groups_.size(); ++g) set(p, g, below(generator, groups_[g].levels.size()));
    return p;
  }

  /// Draws uniformly from [0, bound). A draw from the incomplete last multiple of `bound` is repeated, because a
  /// remainder alone would favour small numbers.
  static std::size_t below(std::mt19937_64& generator, std::size_t bound) {
    const std::uint64_t limit = std::numeric_limits<std::uint64_t>::max() / bound * bound;
    for (;;) {
      if (const std::uint64_t drawn = generator(); drawn < limit) return drawn % bound;
    }
  }

 private:
  plan base_;
  std::vector<op_group> groups_;
  std::function<bool(const plan&)> valid_;
};

}  // namespace comp
