// SPDX-License-Identifier: Apache-2.0
// Ends a candidate's epoch early if its losses are not finite, if they have diverged, or if it is too slow to win. A
// candidate that is cut costs a few batches instead of an epoch. This matters: FP16 on a CPU can be 50 times slower
// than FP32.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <vector>

namespace comp {

/// Judges an epoch so far against the FP32 epoch and the best candidate's time.
class candidate_cut {
 public:
  /// `best_seconds`: the median time of a batch of the best accepted candidate [s]; infinity if there is none.
  /// `loss_sign`: -1 for losses that are maximised, else 1.
  candidate_cut(const early_cut& settings, const sample& fp32, double best_seconds, double loss_sign = 1)
      : settings_{settings},
        fp32_{fp32},
        fp32_seconds_{median(fp32.batch_seconds)},
        best_seconds_{best_seconds},
        loss_sign_{loss_sign} {}

  /// Returns: the status to end the epoch with; status::ok to go on.
  status operator()(const sample& so_far) const {
    if (keeps_losing(so_far)) return status::not_finite;
    if (!is_due(so_far.batch_seconds.size(), so_far.curve.size())) return status::ok;
    if (has_diverged(so_far)) return status::diverged;
    if (is_too_slow(so_far)) return status::stopped_early;
    return status::ok;
  }

 private:
  // A look reads the whole epoch so far. It is made after each of the first 16 batches, and then 8 times per doubling
  // of length, so that all looks together read the epoch only a few times.
  static bool is_due(std::size_t timed, std::size_t recorded) {
    const std::size_t n = std::max(timed, recorded);
    return n % std::max<std::size_t>(std::bit_floor(n) / 8, 1) == 0;
  }

  bool has_diverged(const sample& so_far) const {
    const std::size_t n = so_far.curve.size();
    if (n < settings_.loss_batches || n > fp32_.curve.size()) return false;
    double candidate_sum = 0, fp32_sum = 0, fp32_scale = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (!std::isfinite(so_far.curve[i]) || !std::isfinite(fp32_.curve[i])) continue;
      candidate_sum += so_far.curve[i];
      fp32_sum += fp32_.curve[i];
      fp32_scale += std::abs(fp32_.curve[i]);
    }
    return loss_sign_ * (candidate_sum - fp32_sum) > settings_.diverged * fp32_scale;
  }

  // Compares the lower quartile, not the median, so that a candidate is cut only if even its quick batches are slow.
  // While there are few batches, the quickest one is compared.
  bool is_too_slow(const sample& so_far) const {
    if (so_far.batch_seconds.size() < 3) return false;
    std::vector<double> times{so_far.batch_seconds.begin() + 1, so_far.batch_seconds.end()};
    const bool has_enough = times.size() >= settings_.batches;
    const auto quick = times.begin() + static_cast<std::ptrdiff_t>(has_enough ? times.size() / 4 : 0);
    std::nth_element(times.begin(), quick, times.end());
    const double limit =
        std::min(settings_.slower_than_fp32 * fp32_seconds_, settings_.slower_than_best * best_seconds_);
    return *quick > limit * (has_enough ? 1 : settings_.at_once);
  }

  early_cut settings_;
  const sample& fp32_;
  double fp32_seconds_;
  double best_seconds_;
  double loss_sign_;
};

}  // namespace comp
