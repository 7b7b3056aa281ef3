// SPDX-License-Identifier: Apache-2.0
// Sets the training after a search apart from the search: the trainer is told, nothing is recalled from a ledger, and
// the batches that the search trained count as the first epochs. It begins after a search, or goes on with what another
// process stopped.
#pragma once

#include <comp/core/error.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/shadow_test.hpp>
#include <cstddef>
#include <optional>
#include <vector>

namespace comp::detail {

/// While an object of this class lives, the trainer knows that its epochs are no experiments.
class post_training_notice {
 public:
  explicit post_training_notice(any_trainer& trainer) : trainer_{trainer} { trainer_.post_training(true); }
  post_training_notice(const post_training_notice&) = delete;
  post_training_notice& operator=(const post_training_notice&) = delete;
  ~post_training_notice() {
    try {
      trainer_.post_training(false);
    } catch (...) {  // the caller has to see the exception that ended the training, not this one
    }
  }

 private:
  any_trainer& trainer_;
};

/// The observers of a training. Nothing is recalled from a ledger, because a training is run for its weights.
template <Observer... Observers>
struct training_observers : observer_list<Observers...> {
  using observer_list<Observers...>::observer_list;
  std::optional<trial> recall(const trial&) final { return std::nullopt; }
};

/// Returns: the logarithm of the likelihood ratio of slow harm, from the batches by which the search judged its plan.
inline double evidence_of_search(const outcome& search, double loss_sign) {
  std::vector<double> path;
  for (const trial& t : search.trials) {
    if (t.stage != stage::losses || t.plan != search.plan || t.purpose != purpose::judge || !t.sample.ok()) continue;
    path = paired_differences(make_lower_better(t.sample.curve, loss_sign),
                              make_lower_better(search.baseline.curve, loss_sign));
  }
  return drift_likelihood(shadow_of_beginning(search.tolerance, 0), path);
}

/// Returns: the progress of a training when its search has ended, with the batches that the search trained as its first
/// epochs.
inline training_progress progress_after(const outcome& search, const guard_settings& guard) {
  const double loss_sign = search.higher_is_better ? -1 : 1;
  training_progress now{.ladder = search.fallbacks.empty() ? std::vector{search.plan} : search.fallbacks,
                        .later = search.later,
                        .batches_per_epoch = search.batches_per_epoch,
                        .baseline_loss = search.baseline.loss,
                        .tolerance = search.tolerance,
                        .higher_is_better = search.higher_is_better};
  recent_levels normal{guard};
  normal.learn(make_lower_better(search.baseline.curve, loss_sign));
  const std::size_t epoch = search.batches_per_epoch, trained = epoch > 0 ? search.trained_batches : 0;
  for (std::size_t at = 0; at + epoch <= trained && epoch > 0; at += epoch) {
    now.so_far.epochs.push_back(slice(search.trained, at, at + epoch));
    normal.learn(make_lower_better(now.so_far.epochs.back().curve, loss_sign));
  }
  if (epoch > 0 && trained % epoch > 0) now.begun = slice(search.trained, trained - trained % epoch, trained);
  now.normal = normal.state();
  now.audits.known = evidence_of_search(search, loss_sign);
  return now;
}

/// Returns: what a training that another process began still knows of its search.
inline outcome search_behind(const op_graph& graph, const training_progress& from) {
  require<plan_error>(from.rung < from.ladder.size(),
                      "a training on plan {} of a ladder of {} (there is none such): go on from what "
                      "training_progressed() told",
                      from.rung, from.ladder.size());
  for (const plan& p : from.ladder) require_fits(p, graph);
  require_in_order(from.later, graph);
  outcome log{.plan = from.ladder.front(), .graph = graph, .batches_per_epoch = from.batches_per_epoch};
  log.baseline.loss = from.baseline_loss;
  log.tolerance = from.tolerance;
  log.higher_is_better = from.higher_is_better;
  return log;
}

}  // namespace comp::detail
