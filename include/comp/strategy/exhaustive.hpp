// SPDX-License-Identifier: Apache-2.0
// Tries every plan of the space once, the most conservative first. This is what the CoMP paper does.
// Use when operators are tied (by kind, by scope) or few, because each plan has to be judged by its losses in stage 1.
// It holds one plan in memory whatever the size of the space, and ignores results, since it tries everything anyway.
// Source: CoMP paper, section 3.2 and algorithm 1.
#pragma once

#include <algorithm>
#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace comp::strategy {

struct exhaustive {
  std::uint64_t limit = 1024;  // a larger space is refused

  class run;
  /// Throws: `space_error`, with the size and what to tie, when the space is larger than `limit`.
  run start(search_space over) const;
};

class exhaustive::run {
 public:
  explicit run(search_space over) : space_{std::move(over)}, next_{space_.conservative()} {
    levels_.assign(space_.groups().size(), 0);
  }

  std::vector<plan> ask(std::size_t at_most) {
    std::vector<plan> plans;
    plans.reserve(std::min<std::size_t>(at_most, 256));
    while (plans.size() < at_most && !done_) {
      if (space_.valid(next_)) plans.push_back(next_);
      advance();
    }
    return plans;
  }

  void tell(const trial&) {}
  std::size_t at_most() const { return static_cast<std::size_t>(space_.size().value_or(0)); }

 private:
  // Counts through the space as a number with a digit for each group. From one plan to the next two groups change at
  // most on average, so 10^5 operators cost no more than few.
  void advance() {
    for (std::size_t g = 0; g < levels_.size(); ++g) {
      levels_[g] = (levels_[g] + 1) % space_.groups()[g].levels.size();
      space_.set(next_, g, levels_[g]);
      if (levels_[g] != 0) return;
    }
    done_ = true;
  }

  search_space space_;
  plan next_;
  std::vector<std::size_t> levels_;
  bool done_ = false;
};

inline exhaustive::run exhaustive::start(search_space over) const {
  const auto size = over.size();
  require<space_error>(size && *size <= limit,
                       "search space has {} plans in {} groups (exhaustive may try {}): tie operators by kind or by "
                       "scope, raise exhaustive.limit, or use greedy or random",
                       over.size_text(), over.groups().size(), limit);
  return run{std::move(over)};
}

static_assert(SearchStrategy<exhaustive>);

}  // namespace comp::strategy
