// SPDX-License-Identifier: Apache-2.0
// Draws plans uniformly, none of them twice: the yardstick that every other strategy has to beat.
// Use when the space is too large for `exhaustive` and nothing is known about the operators.
// The most conservative plan comes first, so that there is always one to compare with. Results are ignored. One seed
// gives the same plans with every standard library. It ends when every plan was drawn, or when 100,000 draws in a row
// gave no new valid plan.
// Source: none; the CoMP paper enumerates.
#pragma once

#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace comp::strategy {

struct random {
  std::size_t trials = 64;  // how many plans are asked for
  std::uint64_t seed = 0;

  class run;
  run start(search_space over) const;
};

class random::run {
 public:
  run(const random& chosen, search_space over)
      : space_{std::move(over)}, left_{at_most_plans(space_, chosen.trials)}, generator_{chosen.seed} {}

  std::vector<plan> ask(std::size_t at_most) {
    std::vector<plan> plans;
    for (std::size_t misses = 0; plans.size() < at_most && left_ > 0;) {
      plan drawn = asked_.empty() ? space_.conservative() : space_.random(generator_);
      if (asked_.fresh(space_, drawn)) {
        plans.push_back(std::move(drawn));
        --left_;
        misses = 0;
      } else if (asked_.exhausted(space_, ++misses, most_misses)) {
        left_ = 0;
      }
    }
    return plans;
  }

  void tell(const trial&) {}
  std::size_t at_most() const { return left_; }

 private:
  static constexpr std::size_t most_misses = 100'000;
  search_space space_;
  std::size_t left_;
  std::mt19937_64 generator_;
  asked_plans asked_ = {};
};

inline random::run random::start(search_space over) const { return run{*this, std::move(over)}; }

static_assert(SearchStrategy<random>);

}  // namespace comp::strategy
