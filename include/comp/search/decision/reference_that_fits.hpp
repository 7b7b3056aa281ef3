// SPDX-License-Identifier: Apache-2.0
// Finds the plan that takes FP32's place as the reference if FP32 does not fit in memory: the most conservative plan
// that fits.
// Operators are lowered in the order of their expected harm, least first, until the plan fits. Nobody has judged the
// losses of such a plan. Therefore its low operators are put back to FP32 a few at a time, as many as fit while all
// others are low. If the losses then become clearly lower, those operators harm, and they move to the end of the order.
// Use it if the trainer can restore its state.
#pragma once

#include <algorithm>
#include <comp/search/decision/learned_costs.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/strategy/plan_costs.hpp>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace comp {

/// Looks for the most conservative plan that fits in memory. Requires: the reference is a plan that fits.
class reference_that_fits {
 public:
  /// `start`: the state that FP32 began from, in which the trainer is left.
  reference_that_fits(evaluator& run, const search_settings& settings, const guided_start& from,
                      const checkpoint& start)
      : run_{run}, settings_{settings}, start_{start}, fp32_{from.levels.size()}, low_{run.fp32()} {
    for (std::size_t i = 0; i < fp32_.size(); ++i) fp32_[i] = from.levels[i].front();
    const plan fits = low_;
    const auto covers_it = [&](const plan& all) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (fits[i] != fp32_[i] && fits[i] != all[i]) return false;
      }
      return true;
    };
    for (auto p = from.lows.rbegin(); p != from.lows.rend(); ++p) {
      if (plan all = lower_to(*p, fp32_, from.levels); covers_it(all)) low_ = std::move(all);
    }
    bool scored = false;
    run_.restore(start_);
    const std::vector<double> harm = detail::harm_order(run_, from, start_, fp32_, low_, scored);
    run_.restore(start_);
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      if (low_[i] != fp32_[i]) order_.push_back(i);
      double elements = 0;
      for (const tensor_info& t : run_.log().graph[i].outputs) elements += detail::elements_of(t);
      bytes_saved_.push_back(elements * (traits(fp32_[i]).bytes - traits(low_[i]).bytes));
    }
    std::sort(order_.begin(), order_.end(),
              [&](std::size_t a, std::size_t b) { return harm[a] != harm[b] ? harm[a] < harm[b] : a < b; });
    const std::size_t planned = settings.planned_epochs * run_.log().batches_per_epoch;
    if (planned > 0) questions_left_ = planned / 20 / batches_to_judge;
  }

  /// Returns: the plan. A twentieth of the training may be spent on finding it. No batch counts as training.
  plan find() {
    plan found = smallest_that_fits();
    for (auto harmful = harmful_in(found); !harmful.empty(); harmful = harmful_in(found)) {
      for (const std::size_t op : harmful)
        std::rotate(std::find(order_.begin(), order_.end(), op), std::find(order_.begin(), order_.end(), op) + 1,
                    order_.end());
      plan next = smallest_that_fits();
      if (next == found) break;
      found = std::move(next);
    }
    run_.restore(start_);
    return found;
  }

 private:
  plan lower_first(std::size_t count) const {
    plan p = fp32_;
    for (std::size_t k = 0; k < count; ++k) p[order_[k]] = low_[order_[k]];
    return p;
  }

  // Bisects over the number of lowered operators. One batch each shows whether the plan fits.
  plan smallest_that_fits() {
    std::size_t too_few = 0, enough = order_.size();
    while (too_few + 1 < enough) {
      const std::size_t middle = (too_few + enough) / 2;
      (train(lower_first(middle), 1).ok() ? enough : too_few) = middle;
    }
    return lower_first(enough);
  }

  sample train(const plan& p, std::size_t batches) {
    const auto work = [&](const trial& begun) {
      run_.restore(start_);
      sample run;
      run_.train(begun, p, batches, run, detail::cut_if_not_finite);
      return run;
    };
    return run_.run_and_record(stage::baseline, p, "in place of fp32", work).sample;
  }

  // Returns: low operators of `found` that lower the losses when they are put back to FP32; empty if there are none, or
  // no questions are left. Those that are thought most harmful are asked about first.
  std::vector<std::size_t> harmful_in(const plan& found) {
    double bytes_of_fp32 = 0;
    std::vector<std::size_t> suspects;
    for (const std::size_t op : order_) {
      if (found[op] == fp32_[op]) bytes_of_fp32 += bytes_saved_[op];
      if (found[op] != fp32_[op] && !asked_[op]) suspects.push_back(op);
    }
    known_to_fit_ = std::max(known_to_fit_, bytes_of_fp32);
    sample low;
    while (!suspects.empty() && questions_left_ > 0) {
      const std::vector<std::size_t> to_raise = take_next(suspects);
      if (to_raise.empty()) continue;
      plan p = low_;
      for (const std::size_t op : to_raise) p[op] = fp32_[op];
      if (low.batches == 0) low = train(found, batches_to_judge);
      const sample high = train(p, batches_to_judge);
      if (high.status == status::out_of_memory) {
        known_not_to_fit_ = std::min(known_not_to_fit_, bytes_saved_[to_raise.front()]);
        continue;
      }
      --questions_left_;
      for (const std::size_t op : to_raise) {
        known_to_fit_ = std::max(known_to_fit_, bytes_saved_[op]);
        asked_[op] = true;
      }
      if (is_better(high, low)) return to_raise;
    }
    return {};
  }

  // Takes suspects from the end. Returns: as many as are known to fit in FP32 together, or a single one if that is not
  // known; none if it is known not to fit.
  std::vector<std::size_t> take_next(std::vector<std::size_t>& suspects) const {
    std::vector<std::size_t> operators;
    double bytes = 0;
    for (; !suspects.empty(); suspects.pop_back()) {
      bytes += bytes_saved_[suspects.back()];
      if (bytes > known_to_fit_ && !operators.empty()) break;
      if (bytes < known_not_to_fit_) operators.push_back(suspects.back());
      if (bytes > known_to_fit_) {
        suspects.pop_back();
        break;
      }
    }
    return operators;
  }

  bool is_better(const sample& high, const sample& low) const {
    if (!high.ok()) return false;
    const std::vector<double> path = loss_path(high.curve, low.curve, detail::loss_sign_of(run_.log()));
    return !path.empty() && mean_of(path) > settings_.tolerance;
  }

  static constexpr std::size_t batches_to_judge = 8;  // of each of the two plans that raised operators are judged by

  evaluator& run_;
  const search_settings& settings_;
  checkpoint start_;
  plan fp32_, low_;                       // `low_`: with all operators low that may be; it fits
  std::vector<std::size_t> order_ = {};   // the operators that may be lowered, least harmful first
  std::vector<double> bytes_saved_ = {};  // per operator, the bytes of its outputs that lowering it saves
  std::vector<bool> asked_ = std::vector<bool>(fp32_.size());
  // [bytes] above those of `low_`.
  double known_to_fit_ = 0, known_not_to_fit_ = std::numeric_limits<double>::infinity();
  std::size_t questions_left_ = 64;  // how often operators may still be put back to FP32 and judged
};

}  // namespace comp
