// SPDX-License-Identifier: Apache-2.0
// Which operators are lowered first: the least harmful, by what a backend says of their errors and a policy of their
// kind. Not here: what is asked of them in that order (strategy/mending.hpp, accepted_operators.hpp).
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

/// Per operator, the precisions that it may have.
using precision_levels = std::vector<std::vector<precision>>;
inline bool contains(const std::vector<precision>& levels, precision p) {
  return std::find(levels.begin(), levels.end(), p) != levels.end();
}

/// What a guided search starts from.
struct guided_start {
  precision_levels levels = {};          // that each operator may have, the most conservative plan's first
  std::vector<decision> decisions = {};  // the policy's, per operator
  std::vector<precision> lows = {};      // in order of preference
  std::vector<plan> rules = {};          // rule-based plans, rivals, an earlier search's plan
  std::size_t batches_per_epoch = 0;     // 0: not known
};

/// The plan with each operator in `low` that may have it, and else as in `base`.
inline plan lowered_to(precision low, const plan& base, const precision_levels& levels) {
  plan all = base;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (contains(levels[i], low)) all[i] = low;
  }
  return all;
}

namespace detail {

/// What a policy knows of an operator counts beside its error.
inline double risk_of(category said) { return said == category::allow ? 0.25 : said == category::deny ? 1 : 0.5; }

/// Of each operator, its error in the precision that `wanted` gives it, times its risk; infinity where it stays.
/// Throws: what the backend throws; `error` for scores of another number of operators.
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

/// Of each operator 0, 1 or 2, where the policy allows it, leaves it open, denies it.
inline std::vector<double> policy_order(const std::vector<decision>& decisions) {
  std::vector<double> order(decisions.size());
  std::transform(decisions.begin(), decisions.end(), order.begin(), [](const decision& said) {
    return said.category == category::allow ? 0 : said.category == category::deny ? 2 : 1;
  });
  return order;
}

/// Of each operator a number, the least harmful's first: its sensitivity (then `scored` is set), or the policy's where
/// a backend cannot tell. `start`: where FP32 began.
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
