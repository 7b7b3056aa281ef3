// SPDX-License-Identifier: Apache-2.0
// Decides whether a candidate trains as well as FP32, from as few batches as possible. It compares the losses of both,
// batch by batch, on the same batches from the same state. It may be asked after each batch; an answer takes time
// linear in the batches.
// FP32 with perturbed roundings (`spread`) trains differently from FP32, too, and such a difference is no harm. So with
// k such runs the candidate is compared with the mean of all k + 1 FP32 runs. One FP32 run in ten is further from that
// mean than s, which is estimated by Student's t with k degrees of freedom: s is large for one run, small for four.
// A candidate is accepted if its difference stays below
//   line = max(tolerance - s, s + clamp(2 (s - tolerance), 0, tolerance)).
//   - s <= tolerance / 2: a candidate whose loss rises by the tolerance is hardly ever accepted.
//   - s > tolerance / 2: a candidate whose loss does not rise is hardly ever rejected.
// Harm that grows shows in the later half of the batches, which is judged too. If that half is clearly above the
// earlier one, the candidate is accepted only if as much growth once more would leave it below the line; with
// `more_growth` (formats below 16 bits), several times as much.
// Not here: harm that begins later (the guard in search/training sees it), and drifts over tens of batches if no
// `spread` was given.
// Source: Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, time-uniform central limit theory (asymptotic confidence
// sequence); AR(1) long-run variance, its correlation corrected for bias (Marriott and Pope 1954); Wallace 1959.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/verdict.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace comp {

/// Settings of the test.
struct loss_test_settings {
  double tolerance = 0.01;  // a fraction of FP32's mean loss, or of the losses' deviation if that is larger
  double level = 0.05;      // chance of a wrong answer, whenever one is given
  std::size_t least = 16;   // how many batches are needed before a candidate is accepted
  /// How many times its growth so far a clearly growing harm is expected to grow further. 0: once, but not for the last
  /// answer.
  double more_growth = 0;
};

/// Losses per batch of trainings on the same batches from the same state; lower is better. `spread` has runs of FP32
/// with perturbed roundings, each as long as it was run; it is empty if none was made.
struct loss_evidence {
  std::span<const double> fp32 = {};
  std::span<const double> candidate = {};
  std::vector<std::span<const double>> spread = {};
};

namespace detail {

/// Returns: the value that Student's t exceeds as rarely as a normal variable exceeds `normal`. Source: Wallace 1959.
inline double student_t(double normal, double freedom) {
  const double wallace = normal * (8 * freedom + 3) / (8 * freedom + 1);
  return std::sqrt(freedom * std::expm1(wallace * wallace / freedom));
}

/// The mean of a series that may drift and whose neighbours may be correlated.
struct series_mean {
  double mean = 0;
  double error = 0;    // standard error of the mean
  double freedom = 1;  // degrees of freedom of `error`
};

/// Estimates the mean of `x` and its error. `least_correlation`: the least correlation of neighbours that is assumed,
/// because few values cannot show it. A straight line is subtracted before the variance is computed, so that steady
/// growth does not pass for noise. Requires: 3 values or more.
inline series_mean mean_of_series(std::span<const double> x, double least_correlation = 0) {
  const auto n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n, middle = (n - 1) / 2;
  double slope = 0, squares = 0, neighbours = 0, before = 0, position = -middle;
  for (const double value : x) slope += (value - mean) * position++;
  slope /= n * (n * n - 1) / 12;
  position = -middle;
  for (const double value : x) {
    const double residual = value - mean - slope * position++;
    squares += residual * residual;
    neighbours += residual * before;
    before = residual;
  }
  if (squares <= 0) return {mean, 0, n - 2};
  const double unbiased = std::max((n * neighbours / squares + 2) / std::max(n - 4, 1.0), 0.0);
  const double correlation = std::min(unbiased * (1 + 1 / std::sqrt(n)), 0.95);
  const auto variance_factor = [](double rho) { return (1 + rho) / (1 - rho); };
  const double variance = squares / std::max(n - 2 * variance_factor(correlation), n / 4);
  return {mean, std::sqrt(variance * variance_factor(std::max(correlation, least_correlation)) / n),
          std::max(n / variance_factor(correlation) - 2, 1.0)};
}

/// Returns: half the width of a one-sided confidence sequence, which is wrong at some n with a chance of `level`. It
/// holds for all n at once, so that one may look after each batch. It is tightest at 32 batches.
inline double sequence_radius(const series_mean& series, std::size_t batches, double level) {
  level = std::clamp(level, 1e-12, 0.5);
  const double tuned = 2 * std::log(1 / (2 * level)), rate = (tuned + std::log(tuned + 1) + 1) / 32;
  const double n = static_cast<double>(batches), spent = n * rate + 1;
  return series.error *
         student_t(std::sqrt(2 * spent / (n * rate) * std::log(1 + std::sqrt(spent) / (2 * level))), series.freedom);
}

/// Returns: the scale that a tolerance is a fraction of: max(|mean|, standard deviation) of the losses; 1 if that is 0.
/// Losses are clipped at 30 median absolute deviations, so that a single explosion does not set the scale.
inline double loss_scale(std::span<const double> fp32) {
  std::vector<double> losses = finite_of(fp32);
  if (losses.empty()) return 1;
  const double usual = median(losses);
  std::vector<double> off = losses;
  for (double& loss : off) loss = std::abs(loss - usual);
  const double most = 30 * median(std::move(off));
  if (most > 0) {
    for (double& loss : losses) loss = std::clamp(loss, usual - most, usual + most);
  }
  const double middle = mean_of(losses);
  double deviation = 0;
  for (const double loss : losses) deviation = std::hypot(deviation, loss - middle);
  const double scale = std::max(std::abs(middle), deviation / std::sqrt(static_cast<double>(losses.size())));
  return scale > 0 ? scale : 1;
}

/// Returns: per batch (losses - fp32) / max(`scale`, |fp32| / 10).
/// A batch counts 10 scales at most, so that an explosion is harm and no noise. A batch that only one of the two lost
/// (its loss is not finite) counts one scale, so that a tolerance of 1% also allows one lost batch in a hundred. A
/// batch that both lost counts 0.
inline std::vector<double> differences(std::span<const double> losses, std::span<const double> fp32, double scale) {
  std::vector<double> result(losses.size());
  std::transform(losses.begin(), losses.end(), fp32.begin(), result.begin(), [scale](double a, double b) {
    if (!std::isfinite(a) || !std::isfinite(b)) return (std::isfinite(b) ? 1.0 : 0.0) - (std::isfinite(a) ? 1.0 : 0.0);
    return std::clamp((a - b) / std::max(scale, std::abs(b) / 10), -10.0, 10.0);
  });
  return result;
}

/// Returns: by how much the mean of one more FP32 run may be above the mean of `fp32_runs` runs by roundings alone; one
/// run in ten exceeds it. The noise of single batches is subtracted. `paths`: differences from FP32. The largest value
/// over the later half of the path counts, so that runs that happen to meet at its end are not taken for equal ones.
inline double fp32_stray(const std::vector<std::vector<double>>& paths, double fp32_runs) {
  double squared_steps = 0, steps = 0, widest = 0;
  std::size_t longest = 0;
  for (const auto& path : paths) {
    longest = std::max(longest, path.size());
    for (std::size_t i = 1; i < path.size(); ++i, ++steps)
      squared_steps += (path[i] - path[i - 1]) * (path[i] - path[i - 1]) / 4;
  }
  std::vector<double> sums(paths.size());
  for (std::size_t i = 0; i < longest; ++i) {
    double sum = 0, squares = 0, perturbed_runs = 0;
    for (std::size_t r = 0; r < paths.size(); ++r) {
      if (i >= paths[r].size()) continue;
      sums[r] += paths[r][i];
      const double mean = sums[r] / static_cast<double>(i + 1);
      sum += mean;
      squares += mean * mean;
      ++perturbed_runs;
    }
    if (2 * (i + 1) < longest) continue;
    const double noise = steps > 0 ? squared_steps / steps / static_cast<double>(i + 1) : 0;
    // FP32 itself is one more run, and its difference is 0.
    const double variance = (squares - sum * sum / (perturbed_runs + 1)) / perturbed_runs - noise;
    if (variance > 0) widest = std::max(widest, std::sqrt(variance) * student_t(1.2816, perturbed_runs));
  }
  return widest * std::sqrt(1 + 1 / fp32_runs);
}

/// Returns: true below the line. A candidate that is no worse than FP32 passes in any case, even if the tolerance is 0.
inline bool stays_under(double difference, double line) { return difference < line || difference <= 0; }

/// Sets the answer and the radius of `verdict`. `path`: differences from FP32. Returns: the mean that decides after the
/// last batch: that of the whole path; if the differences clearly grow, that of the later half, or the expected mean
/// with `more_growth`.
inline double decide(const loss_test_settings& settings, std::span<const double> path, loss_verdict& verdict) {
  const std::size_t n = path.size();
  if (n < 4) return verdict.difference;
  const auto assumed_correlation = [](std::size_t values) { return values < 16 ? 0.9 : values < 32 ? 0.5 : 0.0; };
  const series_mean all = mean_of_series(path);
  verdict.radius = sequence_radius(all, n, settings.level);
  double deciding_mean = verdict.difference, expected_mean = verdict.difference;
  const double harm_line = std::max(settings.tolerance, verdict.line);
  bool harm =
      verdict.difference - sequence_radius(mean_of_series(path, assumed_correlation(n)), n, settings.level / 2) >
      harm_line;
  if (n >= 8) {
    const series_mean later = mean_of_series(path.last(n / 2), assumed_correlation(n / 2));
    const double growth = 2 * (later.mean - verdict.difference);
    if (growth > 5 * all.error) {
      expected_mean = later.mean + growth * std::max(settings.more_growth, 1.0);
      if (settings.more_growth > 0) verdict.at_end = expected_mean;
      deciding_mean = settings.more_growth > 0 ? expected_mean : later.mean;
    }
    harm = harm || later.mean - sequence_radius(later, n / 2, settings.level / 4) > harm_line;
    // Losses that have just exploded would widen the interval and pass for noise.
    const auto explodes = [&](double off) { return off > 1 + harm_line; };
    harm = harm || std::all_of(path.end() - static_cast<std::ptrdiff_t>(n / 2), path.end(), explodes);
  }
  if (harm) verdict.answer = loss_answer::rejected;
  if (n >= settings.least && stays_under(expected_mean + verdict.radius, verdict.line))
    verdict.answer = loss_answer::accepted;
  return deciding_mean;
}

}  // namespace detail

/// Returns: accepted or rejected if the evidence says so at the level, else go_on. `last`: no further batch will come,
/// so an undecided plan is accepted if the estimate is below the line, else rejected. Without a batch to compare it is
/// rejected.
inline loss_verdict judge(const loss_test_settings& settings, const loss_evidence& evidence, bool last = false) {
  using namespace detail;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  loss_verdict verdict{.radius = infinity, .line = settings.tolerance};
  const auto fp32 = evidence.fp32.first(std::min(evidence.fp32.size(), evidence.candidate.size()));
  const std::size_t n = fp32.size();
  if (n == 0) return {last ? loss_answer::rejected : loss_answer::go_on, 0, infinity, settings.tolerance};
  const double scale = loss_scale(fp32);
  std::vector<double> path = differences(evidence.candidate.first(n), fp32, scale), sum_of_perturbed(n);
  std::vector<std::vector<double>> perturbed_paths;
  double fp32_runs = 1;  // how many FP32 runs have all n batches
  for (const auto& run : evidence.spread) {
    perturbed_paths.push_back(differences(run.first(std::min(n, run.size())), fp32, scale));
    if (perturbed_paths.back().size() < n) continue;
    ++fp32_runs;
    std::transform(sum_of_perturbed.begin(), sum_of_perturbed.end(), perturbed_paths.back().begin(),
                   sum_of_perturbed.begin(), std::plus<>{});
  }
  std::transform(path.begin(), path.end(), sum_of_perturbed.begin(), path.begin(),
                 [=](double a, double b) { return a - b / fp32_runs; });
  const double stray = fp32_stray(perturbed_paths, fp32_runs);
  verdict.line = std::max(settings.tolerance - stray,
                          stray + std::clamp(2 * (stray - settings.tolerance), 0.0, settings.tolerance));
  verdict.difference = std::accumulate(path.begin(), path.end(), 0.0) / static_cast<double>(n);
  const double deciding_mean = decide(settings, path, verdict);
  if (last && verdict.answer == loss_answer::go_on)
    verdict.answer = stays_under(deciding_mean, verdict.line) ? loss_answer::accepted : loss_answer::rejected;
  return verdict;
}

}  // namespace comp
