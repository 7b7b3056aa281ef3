// SPDX-License-Identifier: Apache-2.0
// The search that the tests of ranks run, and the worlds that they run it in.
#pragma once

#include <comp/ranks/ranks.hpp>
#include <string>
#include <utility>
#include <vector>

#include "thread_ranks.hpp"

namespace thread_ranks {

inline comp::outcome search(comp::ranks::team& team, fake::full_trainer& trainer, fake::watcher& watching,
                            comp::search_settings settings = {}) {
  return comp::ranks::search(
      team, comp::two_stage{fake::lists{}, comp::strategy::guided{}, comp::strategy::greedy{}, std::move(settings)},
      trainer, watching);
}

/// Two operators gain by BF16, two are harmed by it.
inline fake::world typical() {
  fake::world world{.graph = fake::sized_chain({"allow.conv", "allow.linear", "allow.head", "deny.softmax"})};
  fake::timed_by(world, {{2, 3, 1, 1}, {1, 1.5, 0.5, 1}, 0.01});
  world.harm = fake::harmed_by({2, 3});
  return world;
}

/// What the ranks of a search ended with.
struct ended {
  std::vector<std::string> errors;
  std::vector<comp::outcome> found;
  std::vector<fake::state> weights;
  std::vector<fake::counters> counts;
  std::vector<comp::plan> plans;
  fake::watcher watched;  // on rank 0
};

/// Searches on ranks of which each has its own world.
inline ended search_in(const std::vector<fake::world>& worlds, wires& all, comp::search_settings settings = {},
                       fake::watcher watching = {}) {
  const std::size_t n = worlds.size();
  ended got{.errors = {},
            .found = std::vector<comp::outcome>(n),
            .weights = std::vector<fake::state>(n),
            .counts = std::vector<fake::counters>(n),
            .plans = std::vector<comp::plan>(n),
            .watched = std::move(watching)};
  std::vector<fake::watcher> watchers(n);
  got.errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    const auto r = static_cast<std::size_t>(rank);
    fake::full_trainer trainer{worlds[r]};
    const auto keep = [&] {
      got.weights[r] = trainer.weights();
      got.counts[r] = trainer.count();
      got.plans[r] = trainer.now();
    };
    try {
      got.found[r] = search(team, trainer, rank == 0 ? got.watched : watchers[r], settings);
    } catch (...) {
      keep();
      throw;
    }
    keep();
  });
  for (std::size_t r = 1; r < n; ++r) {
    if (!watchers[r].calls.empty()) got.errors[r] += "an observer was told on another rank than 0";
  }
  return got;
}
inline ended search_in(const std::vector<fake::world>& worlds, comp::search_settings settings = {},
                       fake::watcher watching = {}) {
  wires all{static_cast<int>(worlds.size())};
  return search_in(worlds, all, std::move(settings), std::move(watching));
}

}  // namespace thread_ranks
