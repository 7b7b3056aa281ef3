// SPDX-License-Identifier: Apache-2.0
// What a search may cost, in batches of the training that it is for: a short training cannot earn back a long search.
// Batches under FP32 and under accepted plans are training and cost nothing; what a search costs are the batches that
// are undone, and those under plans that are slower than the best.
#pragma once

#include <algorithm>
#include <comp/search/losses/loss_trials.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace comp {

class search_budget {
 public:
  /// `batches_per_epoch`: 0 if it is not known; nothing is limited then. `guided`: false for strategies of the user's,
  /// whose cost the user chose.
  search_budget(const search_settings& settings, std::size_t batches_per_epoch, bool guided)
      : settings_{settings}, per_epoch_{batches_per_epoch}, guided_{guided} {}

  /// Returns: the batches that the search may cost; 1000 if nothing is limited.
  std::size_t batches() const {
    if (per_epoch_ == 0 || !guided_) return 1000;
    return static_cast<std::size_t>(std::min(settings_.budget * static_cast<double>(planned()), 1e6));
  }
  /// The fewest batches that say something of harm that grows with the training; those of the longest test, which
  /// states always have.
  static constexpr std::size_t few_for_growing_harm = 128, most_for_growing_harm = 512;
  /// Returns: true if the budget has room for a test of states.
  bool judges_states() const { return batches() >= most_for_growing_harm; }
  /// Returns: true if the budget has no room for runs that only confirm what is known.
  bool is_tight() const { return batches() < 60; }
  /// Returns: the batches of the training; 0 if its length is not known.
  std::size_t planned() const { return settings_.planned_epochs * per_epoch_; }
  /// Returns: true if a search would cost more than it saves. One plan is then judged, or none.
  bool is_too_short() const { return guided_ && planned() > 0 && planned() <= 300; }
  bool is_too_short_for_one() const { return is_too_short() && planned() < 60; }

  /// Returns: settings under which the contest takes at most about a twentieth of the training. With a tight budget
  /// FP32 does not run again if enough of its batches were already timed with the found plan. `pairs`: how many were.
  race_settings contest_settings(std::size_t pairs) const {
    race_settings chosen = settings_.race;
    if (per_epoch_ > 0 && guided_)
      chosen.contest_rounds = std::clamp(planned() / 40, chosen.min_rounds, chosen.contest_rounds);
    if (is_tight()) chosen.fp32_rounds = pairs > chosen.min_rounds ? 0 : chosen.min_rounds;
    return chosen;
  }

  /// Returns: how many plans a contest of compiled steps may compile, so that it takes at most about a twentieth of the
  /// training, and three at least: FP32, a rule-based plan and the found one. `each`: the seconds that compiling a plan
  /// takes; `batch`: the seconds of FP32's batch.
  std::size_t plans_to_compile(double each, double batch) const {
    constexpr std::size_t least = 3, most = 100;
    if (planned() == 0 || !(each > 0)) return most;
    const double affordable = static_cast<double>(planned()) * batch / 20 / each;
    return static_cast<std::size_t>(std::clamp(affordable, double{least}, double{most}));
  }

  /// Returns: true if `c` needs more memory than is allowed.
  bool too_large(const contestant& c) const {
    return settings_.memory_limit > 0 && c.peak_bytes > settings_.memory_limit;
  }

  /// Returns: true if FP32 needs more memory than is allowed and `c` does not: it is wanted even if it is slower.
  bool fits_instead(const contestant& c, const contestant& fp32) const { return too_large(fp32) && !too_large(c); }

  /// Returns: a sentence for each limit that the outcome exceeds: the planned batches, the allowed memory.
  std::vector<std::string> remarks(const outcome& result, const contestant& winner) const {
    std::vector<std::string> all;
    if (planned() > 0 && result.trained_batches > planned()) {
      all.push_back(
          fmt::format("the search trained {} batches (the training was planned to have {}: too few to search in): "
                      "load the plan and train anew, or plan more epochs",
                      result.trained_batches, planned()));
    }
    if (too_large(winner)) {
      all.push_back(
          fmt::format("memory limit of {} bytes (the plan that won needs {}, and none that is accepted fits): "
                      "raise it, or make the batch smaller",
                      settings_.memory_limit, winner.peak_bytes));
    }
    return all;
  }

 private:
  const search_settings& settings_;
  std::size_t per_epoch_;
  bool guided_;
};

/// What the parts of one search share: the trainer's runs, the outcome that each part adds to, the settings, and the
/// judged plans.
struct search_session {
  evaluator& run;
  outcome& log;
  const search_settings& settings;
  loss_trials& trials;

  /// Returns: the reference that losses are judged against: FP32, or the most conservative plan if pure FP32 cannot
  /// run.
  const plan& fp32() const { return run.fp32(); }
};

/// What the questions of a guided search may still cost. Recalled runs count as if they were run, so that a search
/// which is resumed decides as it did. On a modelled GPU a batch counts alike under every plan, because this machine
/// runs it: its modelled seconds would spend the budget on FP32's batches alone, which take many times as long there as
/// those of the plan that is sought.
class question_budget {
 public:
  /// `batches_per_epoch`: 0 if it is not known; then nothing is limited.
  question_budget(const search_session& search, std::size_t batches_per_epoch)
      : search_{search}, per_epoch_{batches_per_epoch} {}

  /// From now on the batches that judged an accepted plan count as training, in place of those before.
  void count_trial_as_training(const trial& accepted) {
    kept_ = accepted.sample.batches;
    counted_ = search_.log.trials.size();
  }
  /// Sets how many batches count as training, when an accepted plan is given up.
  void set_trained_batches(std::int64_t batches) { kept_ = batches; }
  /// Counts the batches of races among accepted plans as training. `seconds`: of a batch under the fastest of them.
  void count_races_as_training(double seconds) {
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
  double seconds_left(double gain) const {
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
    const std::size_t least = 2 * search_.trials.min_batches();
    const std::size_t epoch = std::max(per_epoch_ > 0 ? per_epoch_ : 256, least);
    const double more = std::max(seconds_left(0), 0.0) / (2 * search_.trials.fp32_seconds());
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
