// SPDX-License-Identifier: Apache-2.0
// Tells when a contest says nothing about a plan: its interval around "as fast as FP32" is wide, as on a busy machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/outcome.hpp>
#include <optional>
#include <string>
#include <vector>

namespace comp {

/// Returns: true for a plan that looks faster than FP32 by times whose 95% interval holds 1 and is wider than a fifth.
inline bool too_noisy(const contestant& c) {
  constexpr double wide = 1.2;
  const interval& at = c.over_fp32.bounds;  // infinite if there were too few pairs: then nothing was measured
  return c.over_fp32.ratio > 1 && at.low > 0 && at.low <= 1 && std::isfinite(at.high) && at.high > wide * at.low;
}

/// Returns: the warning that FP32 was kept because the times are too noisy; nothing if they are not.
inline std::optional<std::string> too_noisy_to_tell(const std::vector<contestant>& contest) {
  const auto at = std::find_if(contest.begin(), contest.end(), [](const contestant& c) {
    return c.status == status::ok && (!c.loss || c.loss->answer != loss_answer::rejected) && too_noisy(c);
  });
  if (at == contest.end()) return {};
  const interval& bounds = at->over_fp32.bounds;
  return fmt::format(
      "too noisy to tell: FP32 kept (\"{}\" is {:.2f} to {:.2f} times as fast, 95%): search again when nothing else runs on "
      "the machine, or with a higher settings.race.fp32_rounds",
      at->label, bounds.low, bounds.high);
}

}  // namespace comp
