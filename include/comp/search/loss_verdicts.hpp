// SPDX-License-Identifier: Apache-2.0
// What the losses of a plan's batches say beside FP32's and beside FP32's own spread. Not here: the tests themselves
// (loss_test.hpp, loss_paths.hpp), which batches are run for them (trials.hpp).
#pragma once

#include <algorithm>
#include <comp/search/acceptance.hpp>
#include <comp/search/loss_paths.hpp>
#include <comp/search/loss_test.hpp>
#include <comp/search/reference_run.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <vector>

namespace comp {

class loss_verdicts {
 public:
  /// Refers to all of them, as they will be when it is asked.
  loss_verdicts(const sample& fp32, const reference_run& reference, const search_settings& settings)
      : fp32_{fp32}, reference_{reference}, settings_{settings} {}

  /// 1 where a larger loss is worse, else -1.
  double worse() const { return settings_.direction == loss_direction::higher_is_better ? -1 : 1; }

  /// Whether one FP32 training strays too far from the next to judge by a single pair.
  bool fp32_strays() const {
    const auto paths = spread_paths();
    return std::any_of(paths.begin(), paths.end(), [&](const auto& p) { return strays(p, settings_.tolerance); });
  }
  bool harm_beyond_doubt(const sample& got) const {
    return beyond_doubt(path_of(got), spread_paths(), settings_.tolerance);
  }
  /// Whether the differences from FP32 go to and fro more than a verdict on their mean allows.
  bool wander(const sample& got) const { return wanders(path_of(got), settings_.tolerance); }

  /// Of all losses that are reported, by the worst one. `least`: batches of the smallest question; `last`: no more
  /// follow, so it must decide.
  loss_verdict verdict(const sample& got, std::size_t least, bool last) const {
    const auto n = static_cast<std::size_t>(got.batches);
    loss_verdict worst;
    if (got.curve.size() != n || fp32_.curve.size() < n) {  // no curve: the paper's rule
      worst.answer =
          accepted(fp32_, got, settings_.tolerance, worse() < 0) ? loss_answer::accepted : loss_answer::rejected;
      return worst;
    }
    const std::size_t losses = std::min(got.curves.size(), fp32_.curves.size());
    loss_test_settings judged_by{.tolerance = settings_.tolerance, .level = settings_.level, .least = least};
    judged_by.level /= static_cast<double>(std::max<std::size_t>(losses + 1, 1));
    const auto judge_one = [&](const std::vector<double>& base, const std::vector<double>& seen, auto spread_of) {
      loss_evidence evidence;
      const std::vector<double> a = signed_curve(base, n), b = signed_curve(seen, n);
      std::vector<std::vector<double>> spread;
      for (const sample& s : reference_.spread()) spread.push_back(signed_curve(spread_of(s), n));
      evidence.fp32 = a, evidence.candidate = b;
      for (const auto& s : spread) {
        if (!s.empty()) evidence.spread.emplace_back(s);
      }
      return judge(judged_by, evidence, last);
    };
    worst = judge_one(fp32_.curve, got.curve, [](const sample& s) -> const std::vector<double>& { return s.curve; });
    for (std::size_t i = 0; losses > 1 && i < losses; ++i) {
      const loss_verdict one =
          judge_one(fp32_.curves[i], got.curves[i], [i](const sample& s) -> const std::vector<double>& {
            static const std::vector<double> none;
            return i < s.curves.size() ? s.curves[i] : none;
          });
      const auto rank = [](loss_answer a) { return a == loss_answer::rejected ? 2 : a == loss_answer::go_on ? 1 : 0; };
      if (rank(one.answer) > rank(worst.answer)) worst = one;
    }
    return worst;
  }

 private:
  std::vector<double> path_of(const sample& got) const { return loss_path(fp32_.curve, got.curve, worse()); }
  std::vector<std::vector<double>> spread_paths() const {
    std::vector<std::vector<double>> paths;
    for (const sample& s : reference_.spread()) paths.push_back(path_of(s));
    return paths;
  }
  std::vector<double> signed_curve(const std::vector<double>& curve, std::size_t n) const {
    std::vector<double> taken{curve.begin(), curve.begin() + static_cast<std::ptrdiff_t>(std::min(n, curve.size()))};
    for (double& value : taken) value *= worse();
    return taken;
  }

  const sample& fp32_;
  const reference_run& reference_;
  const search_settings& settings_;
};

}  // namespace comp
