// SPDX-License-Identifier: Apache-2.0
// A lost batch is one whose loss is not finite. Trainers with loss scaling skip the optimiser's step for it, and the
// next batch trains as usual; FP32 loses batches too. So comp counts a lost batch and lets the training go on. A
// training is given up only if lost batches keep coming, because then the weights themselves are probably not finite.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/sample.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

namespace comp {

inline bool is_finite(const sample& got) {
  return std::isfinite(got.loss) &&
         std::all_of(got.losses.begin(), got.losses.end(), [](double loss) { return std::isfinite(loss); });
}

/// Returns: true if the last batch of `run` was lost.
inline bool ends_lost(const sample& run) {
  return run.curve.empty() ? run.batches > 0 && !is_finite(run) : !std::isfinite(run.curve.back());
}

inline std::int64_t count_lost(const std::vector<double>& losses) {
  return std::count_if(losses.begin(), losses.end(), [](double loss) { return !std::isfinite(loss); });
}

namespace detail {

/// Returns the finite ones of `losses`, in order.
inline std::vector<double> finite_of(std::span<const double> losses) {
  std::vector<double> sound;
  std::copy_if(losses.begin(), losses.end(), std::back_inserter(sound),
               [](double loss) { return std::isfinite(loss); });
  return sound;
}

/// Returns how many batches were lost in `losses` and not in `other`. Both are losses of the same batches, so a batch
/// lost under every plan does not count against one.
inline std::size_t lost_alone(std::span<const double> losses, std::span<const double> other) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(losses.size(), other.size()); ++i)
    count += !std::isfinite(losses[i]) && std::isfinite(other[i]) ? 1U : 0U;
  return count;
}

}  // namespace detail

/// After this many lost batches in a row the weights are taken to be not finite. A smaller number would end sound
/// trainings by chance, a larger one would train longer in vain.
inline constexpr std::int64_t lost_in_a_row_that_damage = 4;

/// Returns: true when the last batch of `run` is lost and a run should end there: it is the fourth lost batch in a row,
/// or clearly more than a tenth of at least 40 batches are lost. "Clearly" means three standard deviations of the
/// binomial distribution, because the question is asked again at every lost batch and each time could be wrong by
/// chance. If no curve was recorded, the run's mean loss decides.
inline bool keeps_losing(const sample& run) {
  constexpr double part = 0.1;
  const std::vector<double>& losses = run.curve;
  if (losses.empty()) return !is_finite(run);
  if (std::isfinite(losses.back())) return false;
  const auto last_sound =
      std::find_if(losses.rbegin(), losses.rend(), [](double loss) { return std::isfinite(loss); }) - losses.rbegin();
  const auto batches = static_cast<double>(losses.size());
  const double most = part * batches + 3 * std::sqrt(part * (1 - part) * batches);
  return last_sound >= lost_in_a_row_that_damage || (batches >= 40 && static_cast<double>(count_lost(losses)) > most);
}

/// Counts the lost batches of `run`, and sets its mean losses to the means over the other batches: one NaN would
/// otherwise make the mean of a whole epoch NaN. Changes no loss if no batch is known to be lost.
inline void leave_out_lost(sample& run) {
  const auto mean = [&](const std::vector<double>& losses) {
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      if (!std::isfinite(run.curve[i])) continue;
      sum += losses[i], ++count;
    }
    return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
  };
  run.not_finite = count_lost(run.curve);
  if (run.not_finite == 0) return;
  run.loss = mean(run.curve);
  for (std::size_t i = 0; i < std::min(run.losses.size(), run.curves.size()); ++i) {
    if (run.curves[i].size() == run.curve.size()) run.losses[i] = mean(run.curves[i]);
  }
}

}  // namespace comp
