// SPDX-License-Identifier: Apache-2.0
// Makes ever more conservative plans, to which the guard of the training falls back (the paper's "gradually return to a
// more conservative plan", section 4.4).
#pragma once

#include <algorithm>
#include <comp/core/plan.hpp>
#include <comp/search/space/candidate_space.hpp>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace comp {

/// Returns: four plans, equal ones once: `p`; `p` with denied operators put back to `base`; `p` with all but allowed
/// operators put back; and `base` itself, the most conservative plan that runs.
inline std::vector<plan> conservative_ladder(const plan& p, std::span<const decision> decisions, const plan& base) {
  std::vector<plan> ladder{p};
  const auto add = [&](auto keeps) {
    plan next = p.as_autocast(false);
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (!keeps(decisions[i].category)) next[i] = base[i];
    }
    if (std::find(ladder.begin(), ladder.end(), next) == ladder.end()) ladder.push_back(std::move(next));
  };
  add([](category c) { return c != category::deny; });
  add([](category c) { return c == category::allow; });
  add([](category) { return false; });
  return ladder;
}

namespace detail {

/// The plans of a training, in order: those that were given up, the one that trains now, and ever more conservative
/// ones.
class plan_ladder {
 public:
  plan_ladder(std::vector<plan> plans, std::size_t rung) : plans_{std::move(plans)}, rung_{rung} {}

  const std::vector<plan>& all() const { return plans_; }
  std::size_t rung() const { return rung_; }
  const plan& current() const { return plans_[rung_]; }
  const plan& fp32() const { return plans_.back(); }
  bool is_most_conservative() const { return rung_ + 1 >= plans_.size(); }
  /// Requires: not is_most_conservative().
  const plan& next() const { return plans_[rung_ + 1]; }

  /// Gives the present plan up. The next one takes over; or `mended` does, if there is one, then its parts that the
  /// more conservative plans lower.
  void give_up(const plan* mended) {
    if (mended != nullptr) return change_to(*mended);
    ++rung_;
  }
  /// Lets `next` take over, then its parts that the more conservative plans lower.
  void change_to(const plan& next) {
    const plan fp32 = plans_.back();
    std::vector<plan> rest{plans_.begin() + static_cast<std::ptrdiff_t>(++rung_), plans_.end()};
    rest.push_back(fp32);
    plans_.resize(rung_);
    plans_.push_back(next);
    for (plan& each : rest) {
      for (std::size_t i = 0; i < each.size(); ++i) {
        if (each[i] != next[i]) each[i] = fp32[i];
      }
      if (each != plans_.back()) plans_.push_back(std::move(each));
    }
  }

 private:
  std::vector<plan> plans_;
  std::size_t rung_;
};

}  // namespace detail

}  // namespace comp
