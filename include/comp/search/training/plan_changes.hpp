// SPDX-License-Identifier: Apache-2.0
// Knows at which batches of a training the plan changes, or may change, for another reason than harm.
// Not here: the changes themselves (guarded_training.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/later_plan.hpp>
#include <comp/core/training_progress.hpp>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace comp::detail {

/// Returns: true if `to` is nowhere less precise than `from`, so that it needs no new evidence.
inline bool only_raises(const plan& from, const plan& to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const bool is_raised = !is_low(to[i]) || (is_scaled(from[i]) && !is_scaled(to[i]));
    if (to[i] != from[i] && !is_raised) return false;
  }
  return true;
}

class plan_changes {
 public:
  /// `finish`: the part of the training, at its end, for which a higher precision is to be tried.
  plan_changes(std::size_t epochs, double finish, const training_progress& from)
      : epochs_{epochs}, finish_{finish}, later_{from.later}, raise_tried_{from.raise_tried} {}

  /// Returns: the plan that is to train from batch `now` on, once; nothing if the present one goes on.
  std::optional<later_plan> take_due(std::size_t now) {
    std::optional<later_plan> due;
    for (; !later_.empty() && later_.front().batch <= now; later_.erase(later_.begin()))
      due = std::move(later_.front());
    return due;
  }
  /// Returns: true, once, if a higher precision is to be tried before batch `now`. `epoch`: the batches of an epoch;
  /// 0: not known yet.
  bool take_raise(std::size_t now, std::size_t epoch) {
    if (!raises(epoch) || now < first_raised(epoch)) return false;
    return raise_tried_ = true;
  }
  /// Returns: how many batches after batch `now` the plan may change next; 0: never.
  std::size_t batches_to_next(std::size_t now, std::size_t epoch) const {
    std::size_t next = 0;
    const auto add = [&](std::size_t batch) {
      if (batch > now && (next == 0 || batch - now < next)) next = batch - now;
    };
    if (!later_.empty()) add(later_.front().batch);
    if (raises(epoch)) add(first_raised(epoch));
    return next;
  }

  void tell(training_progress& to) const {
    to.later = later_;
    to.raise_tried = raise_tried_;
  }

 private:
  bool raises(std::size_t epoch) const { return !raise_tried_ && finish_ > 0 && epoch > 0; }
  // Not batch 0, whose plan is the training's first one.
  std::size_t first_raised(std::size_t epoch) const {
    const auto all = static_cast<double>(epochs_ * epoch);
    return static_cast<std::size_t>(std::lround(std::max(1.0, (1 - finish_) * all)));
  }

  std::size_t epochs_;
  double finish_;
  std::vector<later_plan> later_;
  bool raise_tried_;
};

}  // namespace comp::detail
