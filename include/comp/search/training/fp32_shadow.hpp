// SPDX-License-Identifier: Apache-2.0
// Trains FP32 next to a plan, on the same batches from the same state, as far as it is asked to. Its losses are
// compared with those that the plan's own training recorded, so that evidence costs FP32's batches alone. Two states
// are kept: its first one and its present one.
// Not here: what the losses say (shadow_test.hpp).
#pragma once

#include <algorithm>
#include <comp/core/lost_batches.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/training/branch.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/shadow_test.hpp>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace comp::detail {

class fp32_shadow {
 public:
  /// Begins at the trainer's present state, after `epoch` epochs and the part of the next one that is `begun`.
  /// `at_beginning`: the question is about the plan's first batches, not a later check.
  fp32_shadow(evaluator& run, plan fp32, std::size_t epoch, std::optional<sample> begun,
              const shadow_question& question, bool at_beginning)
      : run_{run},
        fp32_{run, std::move(fp32), "fp32 beside the plan"},
        start_{fp32_.end()},
        epoch_{epoch},
        begun_{std::move(begun)},
        question_{question},
        at_beginning_{at_beginning} {}

  /// Trains FP32 until it has `batches` batches, and restores the trainer's state. Returns: true if FP32 trained.
  bool train_to(std::size_t batches) {
    const bool trained = fp32_.train_to(batches) == status::ok;
    run_.restore_kept_state();
    return trained;
  }

  /// Returns: how many of the batches that the plan has are to be compared next.
  std::size_t next_look(std::size_t plan_batches) const {
    return std::min(plan_batches, std::max({first_look, size() + 3, size() + size() / 4}));
  }
  /// Judges the batches so far. `plan`: the plan's losses; lower is better. `loss_sign`: -1 for losses that are
  /// maximised.
  shadow_answer judge(const std::vector<double>& plan, double loss_sign) const {
    const auto answer = judge_shadow(question_, paired_differences(plan, make_lower_better(so_far().curve, loss_sign)));
    return answer == shadow_answer::harmful && size() < batches_before_harm_ ? shadow_answer::suspicious : answer;
  }
  /// Notes that harm did not appear again when it was repeated: twice as many batches have to show it now.
  void doubt() { batches_before_harm_ = 2 * size(); }

  /// Returns: true if `batches` batches could bring an answer. Ask it after the first look.
  bool could_answer(const std::vector<double>& plan, double loss_sign, double batches) const {
    return could_tell(question_, paired_differences(plan, make_lower_better(so_far().curve, loss_sign)), batches);
  }

  std::size_t size() const { return fp32_.size(); }
  const sample& so_far() const { return fp32_.so_far(); }
  const checkpoint& start() const { return start_; }
  const checkpoint& end() const { return fp32_.end(); }
  std::size_t epoch() const { return epoch_; }
  const std::optional<sample>& begun() const { return begun_; }
  /// Returns: true if the question is about the plan's first batches; false for a later check.
  bool watches_beginning() const { return at_beginning_; }

 private:
  evaluator& run_;
  branch fp32_;
  checkpoint start_;
  std::size_t epoch_;
  std::optional<sample> begun_;
  shadow_question question_;
  bool at_beginning_;
  std::size_t batches_before_harm_ = 0;
};

}  // namespace comp::detail
