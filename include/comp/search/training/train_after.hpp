// SPDX-License-Identifier: Apache-2.0
// Begins a training after a search, or goes on with one that another process began (post_training.hpp).
#pragma once

#include <fmt/format.h>

#include <comp/core/error.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/training/guarded_training.hpp>
#include <comp/search/training/training_epochs.hpp>
#include <cstddef>
#include <utility>

namespace comp::detail {

inline void require_part(double finish) {
  require<settings_error>(finish >= 0 && finish <= 1,
                          "post_training::finish is {} (a part of the training, from 0 to 1, is wanted): give 0.1 for "
                          "its last tenth",
                          finish);
}

COMP_INLINE training_result train_after(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                        const outcome& search) {
  require_part(settings.finish);
  const op_graph graph = trainer.graph();
  require<plan_error>(
      search.graph.size() == 0 || search.graph.fingerprint() == graph.fingerprint(),
      "the outcome is of another model (of {} operators, the trainer's has {}; names, kinds, shapes and "
      "edges must agree): train on with the outcome of this trainer's search",
      search.graph.size(), graph.size());
  require_fits(search.plan, graph);
  require_in_order(search.later, graph);
  const post_training_notice until_the_end{trainer};
  training_progress from = progress_after(search, settings.guard);
  if (const std::size_t trained = from.so_far.epochs.size(); trained > settings.epochs) {
    from.so_far.warnings.push_back(
        fmt::format("the search's {} batches are {} epochs of {}, more than the {} that were asked for: a search costs "
                    "least where epochs are long",
                    search.trained_batches, trained, search.batches_per_epoch, settings.epochs));
  }
  return guarded_training{settings, trainer, observers, search, std::move(from)}.run();
}

COMP_INLINE training_result train_on(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                     training_progress from) {
  require_part(settings.finish);
  const outcome log = search_behind(trainer.graph(), from);
  const post_training_notice until_the_end{trainer};
  return guarded_training{settings, trainer, observers, log, std::move(from)}.run();
}

}  // namespace comp::detail
