// SPDX-License-Identifier: Apache-2.0
// Decides when FP32 trains next to a plan, and how far: from the plan's start until it is known to do no slow harm, and
// again, as a check, in epochs without progress.
// Not here: what becomes of a plan that is found harmful (guarded_training.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/training/fp32_shadow.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/shadow_test.hpp>
#include <comp/search/training/training_record.hpp>
#include <cstddef>
#include <optional>
#include <vector>

namespace comp::detail {

class shadow_watch {
 public:
  /// Keeps references to its arguments. `epochs`: those of the whole training.
  shadow_watch(const guard_settings& guard, std::size_t epochs, evaluator& run, const outcome& log,
               training_record& record, const audit_state& from)
      : guard_{guard}, epochs_{epochs}, run_{run}, log_{log}, record_{record}, audits_{from} {}

  const audit_state& state() const { return audits_.state(); }
  /// Returns: FP32's training next to the plan; empty if none is under way.
  const std::optional<fp32_shadow>& shadow() const { return shadow_; }

  /// Call it before an epoch. Begins FP32's training if the plan is new, or the epoch is to be checked.
  void begin_epoch(const plan& fp32) {
    if (shadow_) return;
    const std::size_t epoch = log_.batches_per_epoch, done = record_.result().epochs.size();
    const shadow_question beginning = shadow_of_beginning(log_.tolerance, state().known);
    // The batches of the search have already shown that it does no slow harm.
    if (beginning.known < std::log(beginning.missed)) audits_.settle_beginning();
    if (!state().settled && guard_.evidence * planned_batches() >= 2.0 * first_look) {
      shadow_.emplace(run_, fp32, done, record_.begun(), beginning, true);
    } else if (epoch > 0 && !record_.begun() && audits_.is_due(done, record_.means())) {
      shadow_.emplace(run_, fp32, done, std::nullopt, shadow_of_audit(guard_.worse, epoch), false);
    }
  }

  /// Call it after an epoch of the plan, or a part of one. Trains FP32 on the plan's batches, as many as an answer
  /// takes. Returns: the plan's losses if they show harm; else nothing.
  std::vector<double> find_harm() {
    if (!shadow_) return {};
    const std::vector<double> plan = record_.losses_since(shadow_->epoch(), shadow_->begun());
    if (plan.empty()) acquit();  // without losses of batches nothing can be compared
    while (shadow_) {
      const shadow_answer answer = shadow_->judge(plan, record_.loss_sign());
      if (answer == shadow_answer::harmful) return {plan.begin(), plan.begin() + std::ssize(shadow_->so_far().curve)};
      const std::size_t next = shadow_->next_look(plan.size());
      if (answer == shadow_answer::harmless || !affords(next, answer, plan)) {
        acquit();
      } else if (next == shadow_->size()) {
        break;  // FP32 trains on when the plan has trained further
      } else {
        if (shadow_->size() == 0) record_.count_comparison();
        if (!shadow_->train_to(next)) acquit();
      }
    }
    return {};
  }

  /// Call it if the harm that find_harm() found did not repeat: from now on twice as many batches have to show it.
  void doubt() { shadow_->doubt(); }
  /// Ends FP32's training, because the batches that follow are not the plan's.
  void drop_shadow() { shadow_.reset(); }
  void plan_changed(std::size_t epoch) {
    drop_shadow();
    audits_.plan_changed(epoch);
  }

 private:
  void acquit() {
    shadow_->watches_beginning() ? audits_.settle_beginning() : audits_.record_acquittal(shadow_->epoch());
    shadow_.reset();
  }

  double planned_batches() const { return static_cast<double>(epochs_ * log_.batches_per_epoch); }

  // Returns: true if more of FP32's batches may be run. Their time is lost, because either they are undone or the
  // plan's are. A later check may take an epoch.
  bool affords(std::size_t batches, shadow_answer answer, const std::vector<double>& plan) const {
    if (shadow_->size() < first_look) return true;
    constexpr double when_suspicious = 5;
    const bool suspicious = answer == shadow_answer::suspicious;
    const double slower = seconds_per_batch(shadow_->so_far()) / seconds_per_batch(record_.last_run());
    double most_batches = guard_.evidence * planned_batches() / slower * (suspicious ? when_suspicious : 1);
    if (!shadow_->watches_beginning())
      most_batches = std::max(most_batches, static_cast<double>(log_.batches_per_epoch));
    return static_cast<double>(batches) <= most_batches &&
           (suspicious || shadow_->could_answer(plan, record_.loss_sign(), most_batches));
  }

  const guard_settings& guard_;
  std::size_t epochs_;
  evaluator& run_;
  const outcome& log_;
  training_record& record_;
  audit_times audits_;
  std::optional<fp32_shadow> shadow_ = {};
};

}  // namespace comp::detail
