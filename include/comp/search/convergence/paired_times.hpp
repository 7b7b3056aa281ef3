// SPDX-License-Identifier: Apache-2.0
// Computes the time of a plan's batches relative to FP32's times of the same batches, so that differences between the
// batches (their lengths) cancel.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace comp::detail {

/// Sets the seconds of `t` from their ratio to FP32's, which were measured on the same batches. With too few batches
/// `t` stays as it is. `slowdown`: the plan's ratio to FP32 if the machine became slow in between, so that times of the
/// two moments do not compare.
/// Returns: true if batches differ in length: their times vary under every plan alike.
inline bool pair_times(trial& t, const sample& fp32, double fp32_seconds, const std::optional<double>& slowdown) {
  const std::vector<double>&fp32_times = fp32.batch_seconds, &plan_times = t.sample.batch_seconds;
  const std::size_t n = std::min(fp32_times.size(), plan_times.size());
  if (!t.sample.ok() || n < 6) return false;
  const std::span<const double> fp32_warm{fp32_times.data() + 1, n - 1}, plan_warm{plan_times.data() + 1, n - 1};
  const paired_speedup ratio = compare_paired(plan_warm, fp32_warm);
  t.seconds = fp32_seconds * ratio.ratio;
  t.bounds = {fp32_seconds * ratio.bounds.low, fp32_seconds * ratio.bounds.high};
  if (slowdown) {  // the two times are of different moments, so there is no interval
    t.seconds = fp32_seconds * *slowdown;
    t.bounds = {t.seconds, t.seconds};
    return false;
  }
  const auto spread = [](std::vector<double> values) {
    const double middle = median(values);
    for (double& v : values) v = std::abs(std::log(v / middle));
    return median(std::move(values));
  };
  std::vector<double> ratios(n - 1);
  std::transform(plan_warm.begin(), plan_warm.end(), fp32_warm.begin(), ratios.begin(), std::divides<>{});
  const double spread_of_times = spread({fp32_warm.begin(), fp32_warm.end()});
  // Noise alone spreads ratios more than times. Few batches must show more: 0.5% of noisy machines look so by chance.
  const double at_least = n < 12 ? 3 : 2;
  return n >= 8 && spread_of_times > 0.05 && spread_of_times > at_least * spread(std::move(ratios));
}

}  // namespace comp::detail
