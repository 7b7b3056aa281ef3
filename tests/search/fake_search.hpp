// SPDX-License-Identifier: Apache-2.0
// The searches that the tests of the whole run: greedy in both stages with operators free, and the guided one.
#pragma once

#include <algorithm>
#include <comp/search/two_stage.hpp>
#include <string>

#include "fake_trainer.hpp"

namespace fake {

using greedy_search = comp::two_stage<lists, comp::strategy::greedy, comp::strategy::greedy>;

inline comp::search_settings settings_with(comp::stages which) {
  comp::search_settings settings;
  settings.stages = which;
  return settings;
}

inline comp::outcome search_with(trainer& on, comp::search_settings settings, watcher& watching) {
  settings.losses_tie = settings.times_tie = comp::tie::none;
  return greedy_search{.settings = std::move(settings)}.run(on, watching);
}

inline comp::outcome search_with(trainer& on, comp::search_settings settings = {}) {
  watcher silent;
  return search_with(on, std::move(settings), silent);
}

/// The same search, or the guided one, which is the default.
inline comp::outcome search_by(bool guided, full_trainer& on, const comp::search_settings& settings,
                               watcher& watching) {
  return guided ? comp::two_stage<lists>{.settings = settings}.run(on, watching) : search_with(on, settings, watching);
}

inline comp::outcome search_by(bool guided, full_trainer& on, const comp::search_settings& settings = {}) {
  watcher silent;
  return search_by(guided, on, settings, silent);
}

/// Greedy, and what it was told.
struct listening {
  std::vector<comp::trial>* trials;
  struct run {
    comp::strategy::greedy::run greedy;
    std::vector<comp::trial>* trials;
    std::vector<plan> ask(std::size_t at_most) { return greedy.ask(at_most); }
    void tell(const comp::trial& t) {
      trials->push_back(t);
      greedy.tell(t);
    }
  };
  run start(comp::search_space over) const { return {comp::strategy::greedy{}.start(std::move(over)), trials}; }
};

inline bool warns(const comp::outcome& found, const std::string& of) {
  return std::ranges::any_of(found.warnings, [&](const auto& w) { return w.find(of) != std::string::npos; });
}

/// A softmax that harms the loss, a ReLU that no list names, and a linear whose sizes do not suit the tensor cores.
inline world typical() {
  world w{.graph = sized_chain({"deny.softmax", "relu", "allow.conv", "allow.linear.odd"})};
  timed_by(w, {{1, 1, 3, 2}, {0.7, 0.5, 1.5, 1}, 0});
  w.harm = harmed_by({0});
  return w;
}
struct in_typical {
  fake::world world = typical();
};

}  // namespace fake
