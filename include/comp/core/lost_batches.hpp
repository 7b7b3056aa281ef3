// SPDX-License-Identifier: Apache-2.0
// Lost batches: those whose loss is not finite. Trainers that look at their losses or gradients skip the step, and the
// next batch is as good as any, in FP32 too; so a lost batch is counted and a training goes on. It is over where they
// come again and again, as they do when the weights themselves are not finite.
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

inline std::int64_t count_lost(const std::vector<double>& losses) {
  return std::count_if(losses.begin(), losses.end(), [](double loss) { return !std::isfinite(loss); });
}

namespace detail {

/// `losses` without those that are not finite.
inline std::vector<double> finite_of(std::span<const double> losses) {
  std::vector<double> sound;
  std::copy_if(losses.begin(), losses.end(), std::back_inserter(sound),
               [](double loss) { return std::isfinite(loss); });
  return sound;
}

/// Batches that `losses` lost and `other`, of the same batches, did not.
inline std::size_t lost_alone(std::span<const double> losses, std::span<const double> other) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(losses.size(), other.size()); ++i)
    count += !std::isfinite(losses[i]) && std::isfinite(other[i]) ? 1U : 0U;
  return count;
}

}  // namespace detail

/// So many one after the other, and the weights themselves are thought not finite.
inline constexpr std::int64_t lost_in_a_row_that_spoil = 4;

/// Returns: true when the last batch of `run` is one lost batch too many: the fourth in a row, or one of clearly more
/// than a tenth of 40 or more: by three standard deviations, since it is asked at every lost batch. The mean decides
/// where no curve was recorded.
inline bool keeps_losing(const sample& run) {
  constexpr double part = 0.1;
  const std::vector<double>& losses = run.curve;
  if (losses.empty()) return !is_finite(run);
  if (std::isfinite(losses.back())) return false;
  const auto last_sound =
      std::find_if(losses.rbegin(), losses.rend(), [](double loss) { return std::isfinite(loss); }) - losses.rbegin();
  const auto batches = static_cast<double>(losses.size());
  const double most = part * batches + 3 * std::sqrt(part * (1 - part) * batches);
  return last_sound >= lost_in_a_row_that_spoil || (batches >= 40 && static_cast<double>(count_lost(losses)) > most);
}

/// Sets the means and the count of lost batches from the curves, where they were recorded.
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
