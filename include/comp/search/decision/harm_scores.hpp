// SPDX-License-Identifier: Apache-2.0
// Orders operators by how much lowering them is thought to harm: by the errors that the backend measures
// (`sensitivity`), or else by the policy's lists.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/core/decision.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/strategy/cost_model.hpp>
#include <cstddef>
#include <exception>
#include <limits>
#include <vector>

namespace comp {

/// Per operator, the precisions that it may have; that of the most conservative plan comes first.
using precision_levels = std::vector<std::vector<precision>>;
inline bool contains(const std::vector<precision>& levels, precision p) {
  return std::find(levels.begin(), levels.end(), p) != levels.end();
}

/// What a guided search starts from.
struct guided_start {
  precision_levels levels = {};          // per operator; that of the most conservative plan first
  std::vector<decision> decisions = {};  // the policy's answer for each operator
  std::vector<precision> lows = {};      // the low precisions that are searched, in order of preference
  std::vector<plan> rules = {};          // rule-based plans, rivals, an earlier search's plan
  std::size_t batches_per_epoch = 0;     // 0: not known
};

/// Returns: `base` with each operator in `low` that may have it.
inline plan lowered_to(precision low, const plan& base, const precision_levels& levels) {
  plan all = base;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (contains(levels[i], low)) all[i] = low;
  }
  return all;
}

namespace detail {

/// Returns: the factor for an operator's measured error. An error is measured in a few steps, and hides what builds
/// up over a training; the policy's lists hold experience of that.
inline double risk_of(category by_policy) {
  return by_policy == category::allow ? 0.25 : by_policy == category::deny ? 1 : 0.5;
}

/// Returns: per operator, its error in the precision that `wanted` gives it, times its risk; infinity if `wanted` does
/// not lower it. An error that is NaN counts as infinite.
/// Throws: what the backend throws; `error` if the number of scores is not that of the operators.
inline std::vector<double> errors_of(evaluator& run, const guided_start& from, const checkpoint& start,
                                     const plan& fp32, const plan& wanted) {
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> all(wanted.size(), infinity);
  for (const precision low : from.lows) {
    if (std::find(wanted.begin(), wanted.end(), low) == wanted.end()) continue;
    run.restore(start);
    const auto measure = [low](auto& trainer) {
      std::vector<double> each;
      for (const op_error& e : trainer.sensitivity(low)) {
        each.push_back(std::isnan(e.output) || std::isnan(e.gradient) ? infinity : std::max(e.output, e.gradient));
      }
      return each;
    };
    const std::vector<double> errors = run.record_numbers(fp32, fmt::format("sensitivity to {}", name(low)),
                                                          purpose::sensitivity, measure, index_of(low));
    require<error>(errors.size() == wanted.size(), "{} scores for {} operators", errors.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == low) all[i] = errors[i] * risk_of(from.decisions[i].category);
    }
  }
  return all;
}

/// Returns: per operator 0 if the policy allows low precision, 1 if it has no opinion, 2 if it denies it.
inline std::vector<double> policy_order(const std::vector<decision>& decisions) {
  std::vector<double> order(decisions.size());
  std::transform(decisions.begin(), decisions.end(), order.begin(), [](const decision& by_policy) {
    return by_policy.category == category::allow ? 0 : by_policy.category == category::deny ? 2 : 1;
  });
  return order;
}

/// Returns: per operator a number that grows with its expected harm: its error, if the backend measures it (`scored` is
/// then set to true), else its place in the policy's order. `start`: the state that FP32 began from.
inline std::vector<double> harm_order(evaluator& run, outcome& log, const guided_start& from, const checkpoint& start,
                                      const plan& fp32, const plan& wanted, bool& scored) {
  if (run.trainer().has.sensitivity) {
    try {
      std::vector<double> by_error = errors_of(run, from, start, fp32, wanted);
      scored = true;
      return by_error;
    } catch (const interrupted&) {
      throw;
    } catch (const std::exception& e) {
      log.warnings.push_back(
          fmt::format("sensitivities were not used ({}): operators were tried in the order of "
                      "the policy's lists",
                      e.what()));
      run.restore_kept_state();
    }
  }
  return policy_order(from.decisions);
}

}  // namespace detail
}  // namespace comp
