// SPDX-License-Identifier: Apache-2.0
// Ends a candidate's epoch before its time: not finite, diverged, or so slow that it cannot win.
// A cut candidate costs a few batches instead of an epoch; FP16 on a CPU can be 50 times slower than FP32.
#pragma once

#include <cmath>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

namespace comp {

/// Judges an epoch so far against the FP32 epoch and the best candidate's time.
class candidate_cut {
 public:
  /// `best_seconds`: median batch of the best accepted candidate; infinity when there is none.
  candidate_cut(const early_cut& settings, const sample& fp32, double best_seconds)
      : settings_{settings}, fp32_{fp32}, fp32_seconds_{median(fp32.batch_seconds)}, best_seconds_{best_seconds} {}

  /// Returns: the status to end with; status::ok to go on.
  status operator()(const sample& so_far) const {
    if (!std::isfinite(so_far.loss)) return status::not_finite;
    if (diverged(so_far)) return status::diverged;
    if (hopeless(so_far)) return status::stopped_early;
    return status::ok;
  }

 private:
  bool diverged(const sample& so_far) const {
    const std::size_t n = so_far.curve.size();
    if (n < settings_.loss_batches || n > fp32_.curve.size()) return false;
    const auto mean = [n](const std::vector<double>& curve) {
      return std::accumulate(curve.begin(), curve.begin() + static_cast<std::ptrdiff_t>(n), 0.0) /
             static_cast<double>(n);
    };
    const double base = mean(fp32_.curve);
    return mean(so_far.curve) > base + settings_.diverged * std::abs(base);
  }

  // Compares the lower quartile, not the median: a candidate is cut only when even its quick batches are slow.
  bool hopeless(const sample& so_far) const {
    std::vector<double> times = so_far.batch_seconds;
    if (times.size() <= settings_.batches) return false;
    times.erase(times.begin());
    const auto quartile = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
    std::ranges::nth_element(times, quartile);
    return *quartile > settings_.slower_than_fp32 * fp32_seconds_ ||
           *quartile > settings_.slower_than_best * best_seconds_;
  }

  early_cut settings_;
  const sample& fp32_;
  double fp32_seconds_;
  double best_seconds_;
};

}  // namespace comp
