// SPDX-License-Identifier: Apache-2.0
// Recognises a batch after which the weights may be damaged: its loss is not finite, or it has exploded.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/search/outcome.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace comp::detail {

/// Returns: 1 if a larger loss is worse, else -1.
inline double loss_sign_of(const outcome& log) { return log.higher_is_better ? -1 : 1; }

/// The lowest and the highest of the last 16 losses of a run; lower is better.
struct recent_losses {
  recent_losses(const std::vector<double>& curve, double loss_sign) {
    std::vector<double> last = finite_of(curve);
    if (last.size() > 16) last.erase(last.begin(), last.end() - 16);
    for (double& loss : last) loss *= loss_sign;
    known = last.size() >= 4;
    if (known) std::tie(low, high) = std::pair{*std::ranges::min_element(last), *std::ranges::max_element(last)};
  }
  bool known;
  double low = 0, high = 0;
};

/// Returns: true if the loss is so far above those of FP32's first batches that weights must have exploded.
inline bool explodes(const outcome& log, double loss) {
  const recent_losses first{log.baseline.curve, loss_sign_of(log)};
  return first.known &&
         loss_sign_of(log) * loss > first.high + 100 * std::max(first.high - first.low, std::abs(first.high));
}
/// Returns: true if the last loss of `run` is not finite, or explodes.
inline bool ends_badly(const outcome& log, const sample& run) {
  return ends_lost(run) || explodes(log, run.curve.empty() ? run.loss : run.curve.back());
}

}  // namespace comp::detail
