// SPDX-License-Identifier: Apache-2.0
// What the questions of a guided search may still cost. Batches under FP32 and under accepted plans are training and
// cost nothing; what a search costs are the batches that are undone, and those under plans that are slower than the
// best. Recalled runs count as if they were run, so that a search which is resumed decides as it did.
// On a modelled GPU a batch counts alike under every plan, because this machine runs it: its modelled seconds would
// spend the budget on FP32's batches alone, which take many times as long there as those of the plan that is sought.
#pragma once

#include <algorithm>
#include <comp/search/decision/session.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace comp {

class question_budget {
 public:
  /// `batches_per_epoch`: 0 if it is not known; then nothing is limited.
  question_budget(const search_session& search, std::size_t batches_per_epoch)
      : search_{search}, per_epoch_{batches_per_epoch} {}

  /// From now on the batches that judged an accepted plan count as training, in place of those before.
  void keep_trial(const trial& accepted) {
    kept_ = accepted.sample.batches;
    counted_ = search_.log.trials.size();
  }
  /// Sets how many batches count as training, when an accepted plan is given up.
  void keep_batches(std::int64_t batches) { kept_ = batches; }
  /// Counts the batches of races among accepted plans as training. `seconds`: of a batch under the fastest of them.
  void keep_races(double seconds) {
    record_time(seconds);
    for (; counted_ < search_.log.trials.size(); ++counted_) {
      const trial& t = search_.log.trials[counted_];
      if (t.stage == stage::times) kept_ += t.sample.batches;
    }
  }
  /// Seconds of a batch under an accepted plan.
  void record_time(double seconds) { best_seconds_ = std::min(best_seconds_, seconds); }

  /// Returns: how many batches of the training are still to come; 1000 if the length of an epoch is not known.
  double to_come() const {
    if (per_epoch_ == 0) return 1000;
    return std::max(planned() - static_cast<double>(trained()), 0.0);
  }

  /// Returns: seconds that the search may still cost. `gain`: seconds of a batch that further questions could save; a
  /// quarter of what that saves in the whole training may be spent beyond the budget, at most seven times the budget.
  double left(double gain) const {
    if (per_epoch_ == 0) return std::numeric_limits<double>::infinity();
    const double fp32 = search_.trials.fp32_seconds(), best = std::min(best_seconds_, fp32);
    const double share = std::min(8 * search_.settings.budget, search_.settings.budget + gain / best / 4);
    const bool modelled = search_.run.times_are_modelled();
    const double batch = modelled ? fp32 : best;
    const double spent = modelled ? static_cast<double>(batches_run()) * batch : search_.run.seconds();
    return share * planned() * batch - (spent - static_cast<double>(trained()) * batch);
  }

  /// Returns: how many batches a test of losses may have. A whole test may take what is left of the budget, each of its
  /// batches with one of FP32's, and always a few.
  std::size_t batches_of_a_test() const {
    const std::size_t least = 2 * search_.trials.least();
    const std::size_t epoch = std::max(per_epoch_ > 0 ? per_epoch_ : 256, least);
    const double more = std::max(left(0), 0.0) / (2 * search_.trials.fp32_seconds());
    const double most = static_cast<double>(search_.log.baseline.batches) + more;
    return most < static_cast<double>(epoch) ? std::max(static_cast<std::size_t>(most), least) : epoch;
  }

 private:
  double planned() const { return static_cast<double>(search_.settings.planned_epochs * per_epoch_); }
  std::size_t batches_run() const {
    std::size_t all = 0;
    for (const stage_cost& stage : search_.log.costs) all += stage.batches;
    return all;
  }
  // Batches of the training that are done.
  std::int64_t trained() const {
    if (search_.run.restores()) return kept_;
    std::int64_t all = 0;
    for (const trial& t : search_.log.trials) all += trains(t.purpose) ? t.sample.batches : 0;
    return all;
  }

  search_session search_;
  std::size_t per_epoch_;
  std::int64_t kept_ = 0;    // batches that are training
  std::size_t counted_ = 0;  // trials that `kept_` takes into account
  double best_seconds_ = std::numeric_limits<double>::infinity();
};

}  // namespace comp
