// SPDX-License-Identifier: Apache-2.0
// Plans that breed: children take a run of groups from one parent and the rest from the other, some change a run of
// their own, and the best of parents and children go on. Use where some hundred plans are affordable and good parts of
// plans lie in different places: crossing joins them. Neighbouring groups are inherited together, since they share
// casts. Plans that are not accepted rank after those that are, by their loss, so that even a population without one
// finds its way. Source: Holland, Adaptation in natural and artificial systems, 1975; two-point crossover, tournaments
// of two, the (mu + lambda) selection of Rechenberg.
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
  std::size_t trials = 128;
  std::size_t population = 16;  // plans that breed, and children in a generation; fewer than 2 count as 2
  double mutation = 0.5;        // part of the children that also change a run of groups
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

  /// A generation at a time; what does not fit `at_most` comes with the next call. The two ends come first.
  std::vector<plan> ask(std::size_t at_most) {
    if (at_most > 0 && waiting_.empty() && left_ > 0) breed();
    std::vector<plan> plans = take_from(waiting_, std::min(at_most, left_));
    left_ -= plans.size();
    return plans;
  }

  void tell(const trial& seen) { field_.emplace_back(seen, count_++); }

  std::size_t at_most() const { return left_; }

 private:
  // Fills `waiting_` with a generation: the first is drawn, later ones are children.
  void breed() {
    keep_best(field_, settings_.population);
    const bool first = !std::exchange(begun_, true) || field_.size() < 2;
    const std::size_t wanted =
        first ? settings_.population - std::min<std::size_t>(settings_.population - 1, field_.size())
              : settings_.population;
    for (std::size_t misses = 0; waiting_.size() < wanted && !asked_.exhausted(space_, misses);) {
      plan next = first || misses > 100 ? draw_plan(space_, generator_) : child();
      const bool fresh = asked_.fresh(space_, next);
      if (fresh) waiting_.push_back(std::move(next));
      misses = fresh ? 0 : misses + 1;
    }
    std::reverse(waiting_.begin(), waiting_.end());
  }

  const plan& parent() {
    const std::size_t a = search_space::below(generator_, field_.size());
    const std::size_t b = search_space::below(generator_, field_.size());
    return field_[std::min(a, b)].plan;  // the field is in order: the lower index won
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
  std::vector<plan> waiting_ = {};  // to be asked for, the last first
  std::vector<scored> field_ = {};  // who may breed; in order once a generation begins
  asked_plans asked_ = {};
  std::size_t count_ = 0;
  bool begun_ = false;
};

inline genetic::run genetic::start(search_space over) const { return run{*this, std::move(over)}; }

static_assert(SearchStrategy<genetic>);

}  // namespace comp::strategy
