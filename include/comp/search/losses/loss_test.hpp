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
// Source: Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, time-uniform central limit theory (asymptotic confidence
// sequence); AR(1) long-run variance, its correlation corrected for bias (Marriott and Pope 1954); Wallace 1959.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/search/losses/acceptance.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/losses/reference_run.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace comp {

/// Settings of the test.
struct loss_test_settings {
  double tolerance = paper_tolerance;  // a fraction of FP32's mean loss, or of the losses' deviation if that is larger
  double level = 0.05;                 // chance of a wrong answer, whenever one is given
  std::size_t least = 16;              // how many batches are needed before a candidate is accepted
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

/// Returns: half the width of a one-sided confidence sequence, which is wrong at some n with a chance of `level`. It
/// holds for all n at once, so that one may look after each batch:
///   error * t(sqrt(2 (n r + 1) / (n r) * log(1 + sqrt(n r + 1) / (2 level))))
/// with r = (a + log(a + 1) + 1) / 32 and a = 2 log(1 / (2 level)), which make it tightest at n = 32.
inline double sequence_radius(const series_mean& series, std::size_t batches, double level) {
  level = std::clamp(level, 1e-12, 0.5);
  const double a = 2 * std::log(1 / (2 * level)), r = (a + std::log(a + 1) + 1) / 32;
  const double nr = static_cast<double>(batches) * r;
  return series.error *
         student_t(std::sqrt(2 * (nr + 1) / nr * std::log(1 + std::sqrt(nr + 1) / (2 * level))), series.freedom);
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

/// Judges repeats by Student's t. Each of `differences` is the mean difference of a pair of trainings, both with
/// perturbed roundings of their own. `last`: no further pair will come, so an open question is decided: the plan is
/// rejected if the mean is above both the tolerance and twice its standard error.
inline loss_verdict judge_repeats(std::span<const double> differences, double tolerance, bool last) {
  const auto pairs = static_cast<double>(differences.size());
  const double estimate = mean_of(differences);
  double squares = 0;
  for (const double d : differences) squares += (d - estimate) * (d - estimate);
  const double error = pairs > 1 ? std::sqrt(squares / (pairs - 1) / pairs) : 0;
  loss_verdict verdict{.difference = estimate, .radius = 2 * error, .line = tolerance};
  if (pairs >= 4) {
    const double margin = error * detail::student_t(2.4, pairs - 1);
    if (estimate - margin > tolerance) verdict.answer = loss_answer::rejected;
    if (estimate + margin < tolerance || estimate + error / 2 < 0) verdict.answer = loss_answer::accepted;
  }
  if (last && verdict.answer == loss_answer::go_on) {
    verdict.line = std::max(tolerance, verdict.radius);
    verdict.answer = estimate < verdict.line ? loss_answer::accepted : loss_answer::rejected;
  }
  return verdict;
}

/// Judges the losses of a plan's batches against FP32's, with FP32's own spread taken into account.
class loss_verdicts {
 public:
  /// Keeps references: a verdict is about the batches that FP32 has when it is asked for.
  loss_verdicts(const sample& fp32, const reference_run& reference, const search_settings& settings)
      : fp32_{fp32}, reference_{reference}, settings_{settings} {}

  /// From now on, harm that clearly grows is extrapolated to the end of a training of `batches` batches. It is taken to
  /// grow by the same amount whenever the batches triple, as they do from the middle of the earlier half to that of the
  /// later one.
  void expect_growth_until(double batches) { planned_ = batches; }
  /// Returns: 1 if a larger loss is worse, else -1.
  double loss_sign() const { return settings_.direction == loss_direction::higher_is_better ? -1 : 1; }

  /// Returns: true if FP32 trainings differ so much from each other that a single pair cannot judge a plan.
  bool fp32_strays() const {
    const auto paths = spread_paths();
    return std::any_of(paths.begin(), paths.end(), [&](const auto& p) { return strays(p, settings_.tolerance); });
  }
  bool harm_beyond_doubt(const sample& candidate) const {
    return beyond_doubt(path_of(candidate), spread_paths(), settings_.tolerance);
  }
  /// Returns: true if the differences from FP32 wander too far for a verdict on their mean.
  bool path_wanders(const sample& candidate) const { return wanders(path_of(candidate), settings_.tolerance); }

  /// Returns: the number of leading batches within `line` of FP32, or no further from it than roundings cause.
  std::size_t batches_near_fp32(const sample& candidate, double line) const {
    return comp::batches_near_fp32(path_of(candidate), spread_paths(), line);
  }

  /// Returns: the verdict on the worst of all losses that the trainer reports, at a level that is divided among them:
  /// accepted, rejected, or go on. A trainer without a loss per batch is judged by the paper's rule. `least`: the
  /// fewest batches that may accept a plan.
  loss_verdict judge_so_far(const sample& candidate, std::size_t least) const { return judge(candidate, least, false); }
  /// The same when no more batches follow: accepted or rejected.
  loss_verdict judge_finally(const sample& candidate, std::size_t least) const { return judge(candidate, least, true); }

 private:
  loss_verdict judge(const sample& candidate, std::size_t least, bool last) const {
    const auto n = static_cast<std::size_t>(candidate.batches);
    loss_verdict worst;
    if (candidate.curve.size() != n || fp32_.curve.size() < n) {  // no curve: the paper's rule
      worst.answer = passes_paper_rule(fp32_, candidate, settings_.tolerance, loss_sign() < 0) ? loss_answer::accepted
                                                                                               : loss_answer::rejected;
      return worst;
    }
    const std::size_t losses = std::min(candidate.curves.size(), fp32_.curves.size());
    loss_test_settings judged_by{.tolerance = settings_.tolerance, .level = settings_.level, .least = least};
    if (planned_ > 0) {
      const double middle_of_later_half = 0.75 * static_cast<double>(n);
      judged_by.more_growth = std::max(std::log(planned_ / middle_of_later_half) / std::log(3.0), 1.0);
    }
    judged_by.level /= static_cast<double>(losses + 1);
    const auto rank = [](loss_answer a) { return a == loss_answer::rejected ? 2 : a == loss_answer::go_on ? 1 : 0; };
    for (std::size_t i = 0; i <= (losses > 1 ? losses : 0); ++i) {
      const std::vector<double> fp32_curve = signed_curve(fp32_, i, n), candidate_curve = signed_curve(candidate, i, n);
      std::vector<std::vector<double>> spread;
      for (const sample& s : reference_.spread()) spread.push_back(signed_curve(s, i, n));
      std::erase_if(spread, [](const auto& curve) { return curve.empty(); });
      const loss_verdict one = comp::judge(
          judged_by, {.fp32 = fp32_curve, .candidate = candidate_curve, .spread = {spread.begin(), spread.end()}},
          last);
      if (i == 0 || rank(one.answer) > rank(worst.answer)) worst = one;
    }
    return worst;
  }

  std::vector<double> path_of(const sample& candidate) const {
    return loss_path(fp32_.curve, candidate.curve, loss_sign());
  }
  std::vector<std::vector<double>> spread_paths() const {
    std::vector<std::vector<double>> paths;
    for (const sample& s : reference_.spread()) paths.push_back(path_of(s));
    return paths;
  }
  // Returns: up to `n` losses of a run, with the sign that makes lower ones better. `i`: 0 for the whole loss, else the
  // i-th of several losses.
  std::vector<double> signed_curve(const sample& run, std::size_t i, std::size_t n) const {
    if (i > run.curves.size()) return {};
    std::vector<double> curve = i == 0 ? run.curve : run.curves[i - 1];
    curve.resize(std::min(n, curve.size()));
    return detail::make_lower_better(std::move(curve), loss_sign());
  }

  const sample& fp32_;
  const reference_run& reference_;
  const search_settings& settings_;
  double planned_ = 0;  // batches of the training; 0: harm is not extrapolated to its end
};

namespace detail {

/// Judges by the score. If it is below FP32's by more than the tolerance, FP32 runs twice more with perturbed
/// roundings, and the plan may lose as much more as these runs differ from FP32.
inline loss_verdict judge_score(evaluator& run, reference_run& reference, double tolerance, const sample& candidate) {
  loss_verdict verdict{.line = tolerance};
  if (candidate.ok()) {
    const sample& fp32 = reference.so_far();
    verdict.difference = score_lost(fp32, candidate);
    if (!(verdict.difference <= verdict.line) && run.restores()) {
      run.run_and_undo([&] { (void)reference.run_spread(2, static_cast<std::size_t>(fp32.batches)); });
      for (const sample& s : reference.spread()) {
        const double moved = std::abs(score_lost(fp32, s));
        if (std::isfinite(moved)) verdict.line = std::max(verdict.line, tolerance + moved);
      }
    }
  }
  const bool as_good = candidate.ok() && verdict.difference <= verdict.line;
  verdict.answer = as_good ? loss_answer::accepted : loss_answer::rejected;
  return verdict;
}

}  // namespace detail

/// Judges `candidate`, an epoch from the state that FP32's began from. The trainer's state stays as it is.
inline loss_verdict judge_epoch(evaluator& run, reference_run& reference, const search_settings& settings,
                                const sample& candidate) {
  if (settings.criterion == criterion::scores)
    return detail::judge_score(run, reference, settings.tolerance, candidate);
  const bool higher = settings.direction == loss_direction::higher_is_better;
  const double fp32 = reference.so_far().loss;
  const bool as_good = passes_paper_rule(reference.so_far(), candidate, settings.tolerance, higher);
  return {.answer = as_good ? loss_answer::accepted : loss_answer::rejected,
          .difference = (higher ? -1 : 1) * (candidate.loss - fp32) / (fp32 == 0 ? 1 : std::abs(fp32)),
          .line = settings.tolerance};
}

}  // namespace comp
