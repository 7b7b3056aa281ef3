// SPDX-License-Identifier: Apache-2.0
#include "rank_search.hpp"

comp::outcome thread_ranks::search(comp::ranks::team& team, fake::full_trainer& trainer, fake::watcher& watching,
                                   comp::search_settings settings) {
  return comp::ranks::search(
      team, comp::two_stage{fake::lists{}, comp::strategy::guided{}, comp::strategy::greedy{}, std::move(settings)},
      trainer, watching);
}
