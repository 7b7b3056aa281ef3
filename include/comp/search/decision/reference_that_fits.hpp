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
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/strategy/cost_model.hpp>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace comp {

class reference_that_fits {
 public:
  /// `order`: the operators that may be lowered, least harmful first. `low`: the plan with all of them low, which fits.
  reference_that_fits(evaluator& run, const op_graph& graph, const search_settings& settings, plan fp32, plan low,
                      std::vector<std::size_t> order)
      : run_{run},
        settings_{settings},
        start_{run.save()},
        fp32_{std::move(fp32)},
        low_{std::move(low)},
        order_{std::move(order)} {
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      double elements = 0;
      for (const tensor_info& t : graph[i].outputs) elements += detail::elements_of(t);
      bytes_saved_.push_back(elements * (traits(fp32_[i]).bytes - traits(low_[i]).bytes));
    }
  }

  /// Returns: the most conservative plan that fits. `most_questions`: how often at most operators are put back to FP32
  /// and judged, each time over `batches` batches. The trainer's state is restored, so no batch counts as training.
  plan find(std::size_t most_questions, std::size_t batches) {
    batches_ = batches;
    left_ = most_questions;
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
    has_room_ = std::max(has_room_, bytes_of_fp32);
    sample low;
    while (!suspects.empty() && left_ > 0) {
      const std::vector<std::size_t> to_raise = take_next(suspects);
      if (to_raise.empty()) continue;
      plan p = low_;
      for (const std::size_t op : to_raise) p[op] = fp32_[op];
      if (low.batches == 0) low = train(found, batches_);
      const sample high = train(p, batches_);
      if (high.status == status::out_of_memory) {
        no_room_ = std::min(no_room_, bytes_saved_[to_raise.front()]);
        continue;
      }
      --left_;
      for (const std::size_t op : to_raise) has_room_ = std::max(has_room_, bytes_saved_[op]), asked_[op] = true;
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
      if (bytes > has_room_ && !operators.empty()) break;
      if (bytes < no_room_) operators.push_back(suspects.back());
      if (bytes > has_room_) {
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

  evaluator& run_;
  const search_settings& settings_;
  checkpoint start_;
  plan fp32_, low_;
  std::vector<std::size_t> order_;
  std::vector<double> bytes_saved_ = {};  // per operator, the bytes of its outputs that lowering it saves
  std::vector<bool> asked_ = std::vector<bool>(fp32_.size());
  // Bytes above those of `low_` that are known to fit, and that are known not to.
  double has_room_ = 0, no_room_ = std::numeric_limits<double>::infinity();
  std::size_t batches_ = 8, left_ = 0;
};

/// Returns: the most conservative plan that fits in memory. A twentieth of the training may be spent on finding it.
/// `start`: the state that FP32 began from, in which the trainer is left. The reference is a plan that fits.
inline plan most_conservative_plan(evaluator& run, const search_settings& settings, const guided_start& from,
                                   const checkpoint& start) {
  const plan& fits = run.fp32();
  plan fp32{from.levels.size()};
  for (std::size_t i = 0; i < fp32.size(); ++i) fp32[i] = from.levels[i].front();
  const auto covers_it = [&](const plan& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (fits[i] != fp32[i] && fits[i] != all[i]) return false;
    }
    return true;
  };
  plan low = fits;
  for (auto p = from.lows.rbegin(); p != from.lows.rend(); ++p) {
    if (plan all = lower_to(*p, fp32, from.levels); covers_it(all)) low = std::move(all);
  }
  bool scored = false;
  run.restore(start);
  const std::vector<double> harm = detail::harm_order(run, from, start, fp32, low, scored);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < fp32.size(); ++i) {
    if (low[i] != fp32[i]) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return harm[a] != harm[b] ? harm[a] < harm[b] : a < b; });
  run.restore(start);
  constexpr std::size_t batches = 8, unknown = 64;
  const std::size_t planned = settings.planned_epochs * run.log().batches_per_epoch;
  return reference_that_fits{run, run.log().graph, settings, fp32, low, std::move(order)}.find(
      planned > 0 ? planned / 20 / batches : unknown, batches);
}

}  // namespace comp
