// SPDX-License-Identifier: Apache-2.0
// A genetic algorithm on plans. A child takes a run of groups from one parent and the rest from the other; some
// children also change a run of groups themselves. The best of parents and children are kept.
// Use if some hundred plans are affordable and different plans are good in different places, which crossing joins.
// Neighbouring groups are inherited together, because they share casts. Plans that were not accepted rank behind the
// accepted ones by their loss, so that a population without an accepted plan still moves towards one.
// Source: Holland, Adaptation in natural and artificial systems, 1975; two-point crossover, tournaments of two, the (mu
// + lambda) selection of Rechenberg.
#pragma once

#include <algorithm>
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

struct genetic {
  std::size_t trials = 128;     // how many plans are asked for
  std::size_t population = 16;  // how many plans are kept, and children of a generation; fewer than 2 count as 2
  double mutation = 0.5;        // share of the children that also change a run of groups
  std::uint64_t seed = 0;

  class run;
  run start(search_space over) const;
};

class genetic::run {
 public:
  run(const genetic& chosen, search_space over)
      : settings_{chosen},
        space_{std::move(over)},
        generator_{chosen.seed},
        left_{at_most_plans(space_, chosen.trials)} {
    settings_.population = std::max<std::size_t>(settings_.population, 2);
    waiting_ = both_ends(space_, asked_);
  }

  /// Asks for a whole generation at once; plans beyond `at_most` come with the next call. The two ends of the space
  /// come first.
  std::vector<plan> ask(std::size_t at_most) {
    if (at_most > 0 && waiting_.empty() && left_ > 0) breed();
    std::vector<plan> plans = take_from(waiting_, std::min(at_most, left_));
    left_ -= plans.size();
    return plans;
  }

  void tell(const trial& result) { field_.emplace_back(result, count_++); }

  std::size_t at_most() const { return left_; }

 private:
  // Fills `waiting_` with a generation. The first one is drawn, later ones are children; if children repeat known plans
  // too often, plans are drawn again.
  void breed() {
    keep_best(field_, settings_.population);
    const bool first = !std::exchange(begun_, true) || field_.size() < 2;
    const std::size_t size = first
                                 ? settings_.population - std::min<std::size_t>(settings_.population - 1, field_.size())
                                 : settings_.population;
    for (std::size_t misses = 0; waiting_.size() < size && !asked_.exhausted(space_, misses);) {
      plan next = first || misses > 100 ? draw_plan(space_, generator_) : child();
      const bool fresh = asked_.fresh(space_, next);
      if (fresh) waiting_.push_back(std::move(next));
      misses = fresh ? 0 : misses + 1;
    }
    std::reverse(waiting_.begin(), waiting_.end());
  }

  // Returns the better of two plans that are drawn.
  const plan& parent() {
    const std::size_t a = search_space::below(generator_, field_.size());
    const std::size_t b = search_space::below(generator_, field_.size());
    return field_[std::min(a, b)].plan;  // the field is sorted, the best first
  }

  plan child() {
    const std::size_t groups = space_.groups().size();
    plan p = parent();
    const plan& other = parent();
    const std::size_t a = search_space::below(generator_, groups), b = search_space::below(generator_, groups);
    for (std::size_t g = std::min(a, b); g <= std::max(a, b); ++g) space_.set(p, g, space_.level(other, g));
    if (fraction(generator_) < settings_.mutation)
      move_run(space_, p, generator_, std::max<std::size_t>(groups / 8, 1));
    return p;
  }

  genetic settings_;
  search_space space_;
  std::mt19937_64 generator_;
  std::size_t left_;
  std::vector<plan> waiting_ = {};  // plans to ask for, in reverse order
  std::vector<scored> field_ = {};  // plans that may become parents; sorted when a generation begins
  asked_plans asked_ = {};
  std::size_t count_ = 0;
  bool begun_ = false;
};

inline genetic::run genetic::start(search_space over) const { return run{*this, std::move(over)}; }

static_assert(SearchStrategy<genetic>);

}  // namespace comp::strategy
