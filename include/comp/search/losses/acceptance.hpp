// SPDX-License-Identifier: Apache-2.0
// Tells whether a candidate's epoch is as good as FP32's, by the paper's rule loss_i < loss_0 * 101%. The rule is
// extended to negative losses, trainers with several losses, and losses that are maximised.
// Source: CoMP paper, section 3.2 and algorithm 1.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace comp {

/// Returns: the loss that a candidate must stay under, loss_0 + tolerance |loss_0|. The absolute value keeps the line
/// above a negative loss.
inline double acceptance_line(double fp32_loss, double tolerance) {
  return fp32_loss + tolerance * std::abs(fp32_loss);
}

/// Returns: true if all three hold: `candidate` ended well; each of its losses is below acceptance_line() of FP32's or
/// no worse than FP32's; its share of batches whose loss is not finite exceeds FP32's by at most `tolerance`.
/// `higher_is_better`: losses are maximised.
inline bool passes_paper_rule(const sample& fp32, const sample& candidate, double tolerance = paper_tolerance,
                              bool higher_is_better = false) {
  if (!candidate.ok() || candidate.losses.size() != fp32.losses.size()) return false;
  const auto lost_share = [](const sample& s) {
    return static_cast<double>(s.not_finite) / static_cast<double>(std::max<std::int64_t>(s.batches, 1));
  };
  if (lost_share(candidate) > lost_share(fp32) + tolerance) return false;
  const auto passes = [=](double base, double loss) {
    if (higher_is_better) base = -base, loss = -loss;
    return loss <= base || loss < acceptance_line(base, tolerance);  // false for NaN on either side
  };
  const auto mean_is_unknown = [](const sample& s, std::size_t i) {
    return s.not_finite > 0 && !std::isfinite(s.losses[i]);
  };
  for (std::size_t i = 0; i < candidate.losses.size(); ++i) {
    if (mean_is_unknown(fp32, i) || mean_is_unknown(candidate, i))
      continue;  // one lost batch makes a mean unknown, and says nothing else
    if (!passes(fp32.losses[i], candidate.losses[i])) return false;
  }
  return passes(fp32.loss, candidate.loss);
}

/// Returns: by how much the score of `candidate` is below FP32's, as a fraction of FP32's; NaN if one of them has no
/// score.
inline double score_lost(const sample& fp32, const sample& candidate) {
  if (!fp32.score || !candidate.score) return std::numeric_limits<double>::quiet_NaN();
  const double lost = *fp32.score - *candidate.score;
  return *fp32.score == 0 ? lost : lost / std::abs(*fp32.score);
}

// Ends a candidate's epoch early if its losses are not finite, if they have diverged, or if it is too slow to win. A
// candidate that is cut costs a few batches instead of an epoch. This matters: FP16 on a CPU can be 50 times slower
// than FP32.

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
  static bool is_due(std::size_t times, std::size_t losses) {
    const std::size_t n = std::max(times, losses);
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
