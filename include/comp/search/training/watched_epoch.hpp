// SPDX-License-Identifier: Apache-2.0
// Trains an epoch, or a part of one, while its losses are watched, and says how it ended.
// Not here: what follows from that (guarded_training.hpp).
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/search/convergence/acceptance.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/plan_mending.hpp>
#include <comp/search/training/training_record.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace comp::detail {

struct watched_epoch {
  sample run = {};
  std::vector<double> losses = {};  // the loss of each batch
  shown_harm::sign shown_by = shown_harm::sign::ended;

  std::string message() const {
    if (!run.message.empty()) return run.message;
    if (shown_by == shown_harm::sign::high_losses) return "its loss rose above its recent level, and FP32's did not";
    if (shown_by == shown_harm::sign::ended) return "its loss was not finite in batch after batch, and FP32's was";
    return fmt::format("it lost {} of {} batches, whose loss was not finite, and FP32 clearly fewer",
                       count_lost(losses), losses.size());
  }
};

class epoch_runner {
 public:
  /// Keeps references to its arguments. `log`: gets the number of an epoch's batches, if it is not known.
  epoch_runner(evaluator& run, outcome& log, training_record& record) : run_{run}, log_{log}, record_{record} {}

  /// Trains the next epoch under `p`, or the rest of one that was begun. `fp32`: what judges lost batches.
  watched_epoch train_epoch(const plan& p, const plan& fp32, epoch_watch& watch) {
    if (record_.begun()) {
      return train_batches(p, fp32, watch, log_.batches_per_epoch - record_.begun_batches(), "");
    }
    trial t = run_.run_training_epoch(p, [&watch](const sample& so_far) { return watch(so_far); });
    t.accepted = accepted(log_.baseline, t.sample, log_.tolerance, log_.higher_is_better);
    run_.record(t);
    if (log_.batches_per_epoch == 0 && t.sample.ok()) log_.batches_per_epoch = t.sample.curve.size();
    if (t.sample.ok()) record_.warn_of_length(t.sample, log_.batches_per_epoch);
    return judge_end(std::move(t.sample), fp32, watch);
  }

  /// Trains `batches` batches of an epoch. `label`: empty if they end it.
  watched_epoch train_batches(const plan& p, const plan& fp32, epoch_watch& watch, std::size_t batches,
                              std::string label) {
    trial t = run_.run(stage::training, p, std::move(label), [&](const trial& as) {
      sample part;
      run_.train(as, p, batches, part, [&watch](const sample& so_far) { return watch(so_far); });
      return part;
    });
    run_.record(t);
    return judge_end(std::move(t.sample), fp32, watch);
  }

 private:
  watched_epoch judge_end(sample run, const plan& fp32, const epoch_watch& watch) {
    if (run.ok() && ends_spoilt(watch.losses_of(run), fp32)) {
      run.status = status::not_finite;
      run_.restore_kept_state();
    }
    const auto shown_by = run.status == status::diverged ? shown_harm::sign::high_losses : shown_harm::sign::ended;
    std::vector<double> losses = watch.losses_of(run);
    return {std::move(run), std::move(losses), shown_by};
  }

  // Returns: true if the weights are damaged: the last batch was lost, and FP32 loses those that follow, too (they are
  // undone). Later batches would then begin from a state that cannot be trained. A trainer that cannot restore its
  // state is judged by its last batches instead.
  bool ends_spoilt(const std::vector<double>& losses, const plan& fp32) {
    if (losses.empty() || std::isfinite(losses.back())) return false;
    if (!run_.restores()) return record_.lost_in_a_row(losses) >= lost_in_a_row_that_spoil;
    const checkpoint here = run_.save();
    const trial t = run_.run(stage::training, fp32, "fp32 after a lost batch", [&](const trial& as) {
      sample next;
      run_.train(as, fp32, static_cast<std::size_t>(lost_in_a_row_that_spoil), next, [](const sample& so_far) {
        return std::isfinite(so_far.curve.back()) ? status::stopped_early : cut_if_not_finite(so_far);
      });
      return next;
    });
    run_.record(t);
    run_.restore(here);
    return t.sample.status == status::not_finite;
  }

  evaluator& run_;
  outcome& log_;
  training_record& record_;
};

}  // namespace comp::detail
