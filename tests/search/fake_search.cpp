// SPDX-License-Identifier: Apache-2.0
#include "fake_search.hpp"

comp::outcome fake::search_with(trainer& on, comp::search_settings settings, watcher& watching) {
  settings.epochs_tie = settings.batches_tie = comp::tie::none;
  return greedy_search{.settings = std::move(settings)}.run(on, watching);
}

comp::outcome fake::search_by(bool guided, full_trainer& on, const comp::search_settings& settings, watcher& watching) {
  return guided ? comp::two_stage<lists>{.settings = settings}.run(on, watching) : search_with(on, settings, watching);
}
