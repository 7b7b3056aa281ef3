// SPDX-License-Identifier: Apache-2.0
// Why the plan of a training changes. After harm ever more conservative plans take over (the paper's "gradually return
// to a more conservative plan", section 4.4); the search or the user may have set plans for later batches; and the last
// part of a training may try a higher precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/decision.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/training/shadow.hpp>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace comp {

/// Returns: four plans, equal ones once: `p`; `p` with denied operators put back to `base`; `p` with all but allowed
/// operators put back; and `base` itself, the most conservative plan that runs.
inline std::vector<plan> conservative_plans(const plan& p, std::span<const decision> decisions, const plan& base) {
  std::vector<plan> plans{p};
  const auto add = [&](auto keeps) {
    plan next = mix(p.operator_by_operator(), base, [&](std::size_t i) { return !keeps(decisions[i].category); });
    if (std::find(plans.begin(), plans.end(), next) == plans.end()) plans.push_back(std::move(next));
  };
  add([](category c) { return c != category::deny; });
  add([](category c) { return c == category::allow; });
  add([](category) { return false; });
  return plans;
}

namespace detail {

/// The plans of a training, in order: those that were given up, the one that trains now, and ever more conservative
/// ones.
class fallback_plans {
 public:
  /// `current`: the place in `plans` of the one that trains now.
  fallback_plans(std::vector<plan>& plans, std::size_t& current) : plans_{plans}, current_{current} {}

  const plan& current() const { return plans_[current_]; }
  const plan& fp32() const { return plans_.back(); }
  bool is_most_conservative() const { return current_ + 1 >= plans_.size(); }
  /// Requires: not is_most_conservative().
  const plan& next() const { return plans_[current_ + 1]; }

  /// Gives the present plan up. The next one takes over; or `part` does, if there is one, then its parts that the
  /// more conservative plans lower.
  void give_up(const plan* part) {
    if (part != nullptr) return change_to(*part);
    ++current_;
  }
  /// Lets `next` take over, then its parts that the more conservative plans lower.
  void change_to(const plan& next) {
    const plan fp32 = plans_.back();
    std::vector<plan> rest{plans_.begin() + static_cast<std::ptrdiff_t>(++current_), plans_.end()};
    rest.push_back(fp32);
    plans_.resize(current_);
    plans_.push_back(next);
    for (plan& each : rest) {
      each = mix(each, fp32, [&](std::size_t i) { return each[i] != next[i]; });
      if (each != plans_.back()) plans_.push_back(std::move(each));
    }
  }

 private:
  std::vector<plan>& plans_;
  std::size_t& current_;
};

// Knows at which batches of a training the plan changes, or may change, for another reason than harm.

/// Returns: true if `to` is nowhere less precise than `from`, so that it needs no new evidence. `reference`: the plan
/// that stands for FP32.
inline bool only_raises(const plan& from, const plan& to, const plan& reference) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const bool is_raised = to[i] == reference[i] || (is_scaled(from[i]) && !is_scaled(to[i]));
    if (to[i] != from[i] && !is_raised) return false;
  }
  return true;
}

class plan_changes {
 public:
  /// `finish`: the part of the training, at its end, for which a higher precision is to be tried.
  plan_changes(std::size_t epochs, double finish, training_progress& state)
      : epochs_{epochs}, finish_{finish}, later_{state.later}, raise_tried_{state.raise_tried} {}

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

 private:
  bool raises(std::size_t epoch) const { return !raise_tried_ && finish_ > 0 && epoch > 0; }
  // Not batch 0, whose plan is the training's first one.
  std::size_t first_raised(std::size_t epoch) const {
    const auto all = static_cast<double>(epochs_ * epoch);
    return static_cast<std::size_t>(std::lround(std::max(1.0, (1 - finish_) * all)));
  }

  std::size_t epochs_;
  double finish_;
  std::vector<later_plan>& later_;
  bool& raise_tried_;
};

// Finds out whether the last part of a training should have a higher precision. The plan, and the same plan with its
// operators raised, train the same batches from the same state until their losses decide.
// Formats below 16 bits are raised to BF16 (or FP16); if a plan has none of them, its operators are raised to FP32.
// Such a change late in a training is known to recover most of the loss that low precision costs, because the noise of
// rounding hides what small learning rates still gain.
// Source: arXiv 2509.25149, appendix (NVFP4's pretraining ends in BF16).

/// Returns: `p` with each operator below 16 bits in BF16, FP16 or FP32, the first that the trainer supports; `fp32` if
/// no operator is below 16 bits.
inline plan raise_precision(const plan& p, const std::vector<precision>& supported, const plan& fp32) {
  if (std::none_of(p.begin(), p.end(), is_scaled)) return fp32;
  const auto has = [&](precision q) { return std::find(supported.begin(), supported.end(), q) != supported.end(); };
  const precision usual = has(precision::bf16)   ? precision::bf16
                          : has(precision::fp16) ? precision::fp16
                                                 : precision::fp32;
  return mix(p.operator_by_operator(), plan{p.size(), usual}, [&](std::size_t i) { return is_scaled(p[i]); });
}

/// Fewer batches than this tell nothing.
inline constexpr std::size_t fewest_to_compare = 16;

struct raise_result {
  branch better;        // the one to go on from
  path_mean gain = {};  // how much lower the raised plan's loss is, as a fraction of it
};

/// Trains `low` and `high` from the trainer's present state, for as many batches as an answer takes, `most` at most.
/// `worth`: the fraction of the loss that the raised plan has to gain.
inline raise_result compare_raised(evaluator& run, const plan& low, const plan& high, double worth, std::size_t most) {
  branch of_low{run, low, "the plan beside a higher precision"},
      of_high{run, high, "a higher precision beside the plan"};
  path_mean gain;
  for (std::size_t batches = fewest_to_compare; batches <= most; batches = std::max(batches + 1, batches * 5 / 4)) {
    if (of_low.train_to(batches) != status::ok || of_high.train_to(batches) != status::ok) break;
    if (of_low.ends_lost() || of_high.ends_lost()) continue;
    gain = mean_of_path(paired_differences(of_low.losses(), of_high.losses()));
    // As far as noise shows, the loss is as low without it.
    if (gain.mean + 2 * gain.error < worth) break;
    if (gain.mean > worth && gain.mean > beyond_wandering * gain.error) return {std::move(of_high), gain};
  }
  return {std::move(of_low), gain};
}

}  // namespace detail

}  // namespace comp
