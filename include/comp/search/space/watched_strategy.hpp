// SPDX-License-Identifier: Apache-2.0
// Checks what a strategy asks for before anything is run: only whole plans of the space that it was given are accepted.
// A plan that it asks for again gets the known answer. A strategy that goes on asking for known plans only is ended, so
// that a faulty one does not run for ever.
#pragma once

#include <algorithm>
#include <comp/core/op_graph.hpp>
#include <comp/core/search_space.hpp>
#include <comp/search/space/candidate_space.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Throws: `plan_error`, naming the operator, for a plan that is not in `space`.
inline void require_in_space(const plan& p, const search_space& space, const op_graph& graph) {
  constexpr const char* remedy =
      "give plans that are made of the space that start() was given, by its base(), set() or random()";
  require<plan_error>(p.size() == space.base().size(),
                      "the strategy asked for a plan of {} operators (the model has {}): {}", p.size(),
                      space.base().size(), remedy);
  const plan nearest = space.project(p);
  const auto mismatch = std::mismatch(p.begin(), p.end(), nearest.begin()).first;
  if (mismatch != p.end()) {
    const auto at = static_cast<std::size_t>(mismatch - p.begin());
    const auto group = std::find_if(space.groups().begin(), space.groups().end(), [&](const op_group& g) {
      return std::find(g.operators.begin(), g.operators.end(), at) != g.operators.end();
    });
    const std::vector<precision> fixed{space.base()[at]};
    const bool is_searched = group != space.groups().end();
    throw plan_error{fmt::format("the strategy asked for operator {} (\"{}\") in {} (the space has {} there{}): {}", at,
                                 graph[at].name, name(*mismatch), names_of(is_searched ? group->levels : fixed),
                                 is_searched ? ", for all operators of group \"" + group->name + "\" alike" : "",
                                 remedy)};
  }
  require<plan_error>(space.valid(p),
                      "the strategy asked for a plan that the space refuses (space.valid() says no): {}", remedy);
}

/// A strategy's run with these checks.
class watched_strategy {
 public:
  watched_strategy(any_strategy::run run, const search_space& space, const op_graph& graph)
      : run_{std::move(run)}, space_{space}, graph_{graph} {}

  /// Returns: up to `n` plans; none if the strategy is done, or has asked a thousand times in a row for nothing new.
  /// Throws: `plan_error` for a plan that is not in the space.
  std::vector<plan> ask(std::size_t n) {
    std::vector<plan> plans = run_.ask(n);
    bool any_new = false;
    for (const plan& p : plans) {
      require_in_space(p, space_, graph_);
      any_new = requested_.insert(p).second || any_new;
    }
    repeated_requests_ = any_new ? 0 : repeated_requests_ + 1;
    if (repeated_requests_ >= max_repeated_requests) plans.clear();
    return plans;
  }
  void tell(const trial& seen) { run_.tell(seen); }

  /// Returns: the warning for a strategy that was ended; empty if it ended by itself.
  std::string warning() const {
    if (repeated_requests_ < max_repeated_requests) return {};
    return fmt::format(
        "the strategy was ended: it asked {} times in a row for plans that it had asked for before ({} in all; "
        "a run is done when ask() gives no plan): look at when its ask() ends",
        max_repeated_requests, requested_.size());
  }

 private:
  static constexpr std::size_t max_repeated_requests = 1000;
  any_strategy::run run_;
  const search_space& space_;
  const op_graph& graph_;
  std::set<plan> requested_ = {};
  std::size_t repeated_requests_ = 0;
};

}  // namespace comp
