// SPDX-License-Identifier: Apache-2.0
// Simulated annealing on plans: a walk from plan to plan that always takes a step to a faster plan, and ever more
// rarely one to a slower plan.
// Use for spaces with many groups that influence each other (through casts), in which greedy and beam stop in a local
// optimum, if some hundred plans are affordable (stage 2).
// The walk starts at the faster of the two ends of the space (all groups on their first or their last level). A step
// puts a run of neighbouring groups on one level, so that whole blocks move. It never goes to a plan that was not
// accepted. A plan that was asked for before is not asked for again; its remembered result decides the step.
// Source: Kirkpatrick, Gelatt and Vecchi, Science 220, 1983; the temperature falls geometrically.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/strategy/moves.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::strategy {

struct annealing {
  std::size_t trials = 128;  // how many plans are asked for
  std::uint64_t seed = 0;

  class run;
  run start(search_space over) const;
};

class annealing::run {
 public:
  run(const annealing& chosen, search_space over)
      : settings_{chosen}, space_{std::move(over)}, generator_{chosen.seed} {}

  /// Asks for one plan at a time, because each answer decides the next step. The two ends of the space come first.
  std::vector<plan> ask(std::size_t at_most) {
    for (std::size_t misses = 0; at_most > 0 && asked_ < settings_.trials && misses < most_misses;) {
      plan next = ends_ == 0 ? space_.conservative() : ends_ == 1 ? lowest(space_) : step();
      ends_ = std::min(ends_ + 1, 3);
      const bool valid = space_.valid(next);
      const auto [known, fresh] = seconds_of_.try_emplace(next);
      if (valid && fresh) {
        ++asked_;
        return {std::move(next)};
      }
      ++misses;
      if (!space_.groups().empty()) walk(next, known->second);
    }
    return {};
  }

  void tell(const trial& result) {
    auto& known = seconds_of_[result.plan];
    if (result.accepted) known = result.seconds;
    walk(result.plan, known);
  }

  std::size_t at_most() const { return at_most_plans(space_, settings_.trials); }

 private:
  static constexpr std::size_t most_misses = 1000;
  // Temperatures at the start and at the end: a step to a plan slower by such a fraction has probability 1/e.
  static constexpr double hot = 0.02, cold = 0.001;

  double temperature() const {
    const double share = static_cast<double>(asked_) / static_cast<double>(settings_.trials);
    return hot * std::pow(cold / hot, share);
  }

  // Returns a neighbour of the walk's present plan. Half of the steps move one group, the others a run of them.
  plan step() {
    plan p = now_.empty() ? space_.conservative() : now_;
    if (space_.groups().empty()) return p;
    move_run(space_, p, generator_, fraction(generator_) < 0.5 ? 1 : space_.groups().size() / 2);
    return p;
  }

  // Goes to plan `to` or stays. `seconds` is the time of `to`; nothing if it was not accepted.
  void walk(const plan& to, const std::optional<double>& seconds) {
    if (!seconds) return;
    const double slower = now_seconds_ ? *seconds / *now_seconds_ - 1 : 0;
    if (slower > 0 && (ends_ < 3 || fraction(generator_) >= std::exp(-slower / temperature()))) return;
    now_ = to;
    now_seconds_ = seconds;
  }

  annealing settings_;
  search_space space_;
  std::mt19937_64 generator_;
  plan now_ = {};
  std::optional<double> now_seconds_ = {};
  std::unordered_map<plan, std::optional<double>> seconds_of_ = {};  // seconds of accepted plans; nothing for others
  std::size_t asked_ = 0;
  int ends_ = 0;  // how many of the first plans were made: the two ends, then the first step
};

inline annealing::run annealing::start(search_space over) const { return run{*this, std::move(over)}; }

static_assert(SearchStrategy<annealing>);

}  // namespace comp::strategy
