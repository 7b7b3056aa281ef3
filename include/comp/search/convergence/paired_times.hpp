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
/// `t` stays as it is. `slower`: the plan's ratio to FP32 where the machine became slow in between, so that times of
/// the two moments do not compare.
/// Returns: true where batches differ in length, because their times vary under every plan alike.
inline bool pair_times(trial& t, const sample& fp32, double fp32_seconds, const std::optional<double>& slower) {
  const std::vector<double>&a = fp32.batch_seconds, &b = t.sample.batch_seconds;
  const std::size_t n = std::min(a.size(), b.size());
  if (!t.sample.ok() || n < 6) return false;
  const std::span<const double> base{a.data() + 1, n - 1}, own{b.data() + 1, n - 1};
  const paired_speedup ratio = compare_paired(own, base);
  t.seconds = fp32_seconds * ratio.ratio;
  t.bounds = {fp32_seconds * ratio.bounds.low, fp32_seconds * ratio.bounds.high};
  if (slower) {  // the two times are of different moments, so there is no interval
    t.seconds = fp32_seconds * *slower;
    t.bounds = {t.seconds, t.seconds};
    return false;
  }
  const auto spread = [](std::vector<double> values) {
    const double middle = median(values);
    for (double& v : values) v = std::abs(std::log(v / middle));
    return median(std::move(values));
  };
  std::vector<double> ratios(n - 1);
  std::transform(own.begin(), own.end(), base.begin(), ratios.begin(), std::divides<>{});
  const double times = spread({base.begin(), base.end()});
  return n >= 12 && times > 0.05 && times > 2 * spread(std::move(ratios));
}

}  // namespace comp::detail
