// SPDX-License-Identifier: Apache-2.0
// Judges the losses of a plan's batches against FP32's, with FP32's own spread taken into account.
// Not here: the tests themselves (loss_test.hpp, loss_paths.hpp), and which batches are run for them (loss_trials.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/convergence/acceptance.hpp>
#include <comp/search/convergence/loss_paths.hpp>
#include <comp/search/convergence/loss_test.hpp>
#include <comp/search/convergence/reference_run.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <vector>

namespace comp {

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

  /// Returns: the verdict on the worst of all losses that the trainer reports, at a level that is divided among them. A
  /// trainer without a loss per batch is judged by the paper's rule. `least`: the fewest batches that may accept a
  /// plan. `last`: no more batches follow, so it has to decide.
  loss_verdict judge_losses(const sample& candidate, std::size_t least, bool last) const {
    const auto n = static_cast<std::size_t>(candidate.batches);
    loss_verdict worst;
    if (candidate.curve.size() != n || fp32_.curve.size() < n) {  // no curve: the paper's rule
      worst.answer = accepted(fp32_, candidate, settings_.tolerance, loss_sign() < 0) ? loss_answer::accepted
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
      const loss_verdict one =
          judge(judged_by, {.fp32 = fp32_curve, .candidate = candidate_curve, .spread = {spread.begin(), spread.end()}},
                last);
      if (i == 0 || rank(one.answer) > rank(worst.answer)) worst = one;
    }
    return worst;
  }

 private:
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
    for (double& value : curve) value *= loss_sign();
    return curve;
  }

  const sample& fp32_;
  const reference_run& reference_;
  const search_settings& settings_;
  double planned_ = 0;  // batches of the training; 0: harm is not extrapolated to its end
};

}  // namespace comp
