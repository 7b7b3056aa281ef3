// SPDX-License-Identifier: Apache-2.0
// How harmful each operator is thought to be in low precision, before its losses are known: by the error that a backend
// measures of it, else by the policy's lists. The least harmful operators are lowered first. Not here: the questions
// that are asked in that order (strategy/mending.hpp, accepted_operators.hpp).
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

/// What a guided search knows before its first question.
struct guided_start {
  precision_levels levels = {};          // that each operator may have, the most conservative plan's first
  std::vector<decision> decisions = {};  // the policy's, per operator
  std::vector<precision> lows = {};      // in order of preference
  std::vector<plan> rules = {};          // rule-based plans, rivals, an earlier search's plan
  std::size_t batches_per_epoch = 0;     // 0: not known
};

/// Returns: `base` with each operator in `low` that may have it by `levels`.
inline plan lowered_to(precision low, const plan& base, const precision_levels& levels) {
  plan all = base;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (contains(levels[i], low)) all[i] = low;
  }
  return all;
}

namespace detail {

/// A factor on an operator's error: the policy's lists know of harm that the error of one batch does not show.
inline double risk_of(category said) { return said == category::allow ? 0.25 : said == category::deny ? 1 : 0.5; }

/// Returns: per operator, its error in the precision that `wanted` gives it, times its risk; infinity where `wanted`
/// does not lower it. Throws: what the backend throws; `error` for scores of another number of operators.
inline std::vector<double> errors_of(evaluator& run, const guided_start& from, const checkpoint& start,
                                     const plan& fp32, const plan& wanted) {
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> all(wanted.size(), infinity);
  for (const precision low : from.lows) {
    if (std::find(wanted.begin(), wanted.end(), low) == wanted.end()) continue;
    run.restore(start);
    const std::size_t repeat = profile_repeats + 1 + index_of(low);
    const std::vector<double> errors =
        run.numbers(fp32, fmt::format("sensitivity to {}", name(low)), repeat, [low](auto& trainer) {
          std::vector<double> each;
          for (const op_error& e : trainer.sensitivity(low)) {
            each.push_back(std::isnan(e.output) || std::isnan(e.gradient) ? infinity : std::max(e.output, e.gradient));
          }
          return each;
        });
    require<error>(errors.size() == wanted.size(), "{} scores for {} operators", errors.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == low) all[i] = errors[i] * risk_of(from.decisions[i].category);
    }
  }
  return all;
}

/// Returns: per operator 0 where the policy allows low precision, 2 where it denies it, else 1.
inline std::vector<double> policy_order(const std::vector<decision>& decisions) {
  std::vector<double> order(decisions.size());
  std::transform(decisions.begin(), decisions.end(), order.begin(), [](const decision& said) {
    return said.category == category::allow ? 0 : said.category == category::deny ? 2 : 1;
  });
  return order;
}

/// Returns: per operator a number that is larger the more harmful it is thought to be: its error, and `scored` is set;
/// or the policy's order where the backend measures none. `start`: the state from which FP32 began, where errors are
/// measured.
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
      run.to_kept();
    }
  }
  return policy_order(from.decisions);
}

}  // namespace detail
}  // namespace comp
