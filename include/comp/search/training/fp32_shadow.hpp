// SPDX-License-Identifier: Apache-2.0
// FP32's training beside a plan's, on the same batches from the same state: the shadow. It trains as many batches as
// are asked for. Its losses are compared with those that the plan's own training recorded, so evidence costs FP32's
// batches alone. Two states are kept: the one in which the shadow began and the one where it is.
// Not here: what the losses say (shadow_test.hpp).
#pragma once

#include <algorithm>
#include <comp/core/lost_batches.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/shadow_test.hpp>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace comp::detail {

class fp32_shadow {
 public:
  /// Begins in the trainer's state: after `epoch` epochs and the part of the next one that is `begun`.
  fp32_shadow(evaluator& run, plan fp32, std::size_t epoch, std::optional<sample> begun, const shadow_question& asked,
              bool opening)
      : run_{run},
        fp32_{std::move(fp32)},
        start_{run.save()},
        end_{start_},
        epoch_{epoch},
        begun_{std::move(begun)},
        asked_{asked},
        opening_{opening} {}

  /// Trains FP32 until it has so many batches. The trainer is left as it was. Returns: whether FP32 trained.
  bool train_to(std::size_t batches) {
    trial t = run_.run(stage::training, fp32_, "fp32 beside the plan", [&](const trial& begun) {
      run_.restore(end_);
      sample more;
      run_.train(begun, fp32_, batches - size(), more, finite_status);
      return more;
    });
    if (t.sample.ok()) {
      end_ = run_.save();
      append(seen_, t.sample);
    }
    run_.to_kept();
    const bool trained = t.sample.ok();
    run_.record(std::move(t));
    return trained;
  }

  /// Returns: how many batches are compared next, of those that the plan has trained.
  std::size_t next_look(std::size_t plan_has) const {
    return std::min(plan_has, std::max({first_look, size() + 3, size() + size() / 4}));
  }
  /// `plan`: its losses, lower is better. `worse`: -1 for losses that are maximised.
  shadow_answer judge(const std::vector<double>& plan, double worse) const {
    const auto answer = judge_shadow(asked_, paired_differences(plan, made_lower_better(seen_.curve, worse)));
    return answer == shadow_answer::harmful && size() < doubted_ ? shadow_answer::suspicious : answer;
  }
  /// Harm was not seen again when the batches were repeated, so from now on twice as many batches have to show it.
  void doubt() { doubted_ = 2 * size(); }

  /// Returns: true where so many batches could bring an answer. It is asked after the first comparison.
  bool is_worth(const std::vector<double>& plan, double worse, double batches) const {
    return could_tell(asked_, paired_differences(plan, made_lower_better(seen_.curve, worse)), batches);
  }

  std::size_t size() const { return static_cast<std::size_t>(seen_.batches); }
  const sample& seen() const { return seen_; }
  const evaluator::place& start() const { return start_; }
  const evaluator::place& end() const { return end_; }
  std::size_t epoch() const { return epoch_; }
  const std::optional<sample>& begun() const { return begun_; }
  /// Returns: true for the shadow of the plan's first batches, false for that of an audit.
  bool opening() const { return opening_; }

 private:
  evaluator& run_;
  plan fp32_;
  evaluator::place start_, end_;
  std::size_t epoch_;
  std::optional<sample> begun_;
  shadow_question asked_;
  bool opening_;
  std::size_t doubted_ = 0;
  sample seen_ = {.loss = 0};
};

}  // namespace comp::detail
