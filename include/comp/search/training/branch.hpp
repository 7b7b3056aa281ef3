// SPDX-License-Identifier: Apache-2.0
// A training under another plan that branches off at a state of the training itself, so that both can be compared on
// the same batches.
#pragma once

#include <comp/core/lost_batches.hpp>
#include <comp/core/plan.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <cstddef>
#include <string>
#include <utility>

namespace comp::detail {

class branch {
 public:
  /// Begins at the trainer's present state. `label`: what its trials are called.
  branch(evaluator& run, comp::plan plan, std::string label)
      : run_{run}, plan_{std::move(plan)}, label_{std::move(label)}, end_{run.save()} {}

  /// Trains until the branch has `batches` batches. Returns: how the trainer, which is left in another state, ended.
  status train_to(std::size_t batches) {
    trial t = run_.run(stage::training, plan_, label_, [&](const trial& begun) {
      run_.restore(end_);
      sample more;
      run_.train(begun, plan_, batches - size(), more, cut_if_not_finite);
      return more;
    });
    const status ended = t.sample.status;
    if (t.sample.ok()) {
      end_ = {};  // before the next state is made, because a state is large
      end_ = run_.save();
      append(so_far_, t.sample);
    }
    run_.record(std::move(t));
    return ended;
  }

  const comp::plan& plan() const { return plan_; }
  std::size_t size() const { return static_cast<std::size_t>(so_far_.batches); }
  const sample& so_far() const { return so_far_; }
  /// Returns: true if its last batch was lost, so that its weights may be damaged.
  bool ends_lost() const { return comp::ends_lost(so_far_); }
  /// Returns: the trainer's state after its last batch.
  const checkpoint& end() const { return end_; }

 private:
  evaluator& run_;
  comp::plan plan_;
  std::string label_;
  checkpoint end_;
  sample so_far_ = {.loss = 0};
};

}  // namespace comp::detail
