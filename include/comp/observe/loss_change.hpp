// SPDX-License-Identifier: Apache-2.0
// Computes what reports show of a loss: its change against FP32's on the same batches from the same state, relative to
// FP32's loss. Means of different batches are never compared, because a later batch of a training has a lower loss
// whatever its precision.
// Not here: deciding whether a loss is accepted (search/losses/loss_test.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/losses/loss_test.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace comp::detail {

/// How a run's mean loss differs from FP32's, relative to FP32's mean loss (or to its spread if the mean is nearly 0).
struct loss_change {
  double difference = 0;                                    // above 0: the run's loss is higher
  double radius = std::numeric_limits<double>::infinity();  // half of its confidence interval; infinity: not known
  std::size_t batches = 0;                                  // how many batches both trained
};

/// True for a run that was judged by its losses. First looks, and FP32 with perturbed roundings, are not judged.
inline bool is_judged(const trial& t) { return t.stage == stage::losses && t.purpose == purpose::judge; }

/// Returns: the change of `got` against `fp32`; nothing if they have no batches in common. Samples without curves are
/// taken to be of the same batches if they have equally many.
inline std::optional<loss_change> change_of(const sample& got, const sample& fp32) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::size_t n = std::min(got.curve.size(), fp32.curve.size());
  if (n > 0) {
    const std::span<const double> base{fp32.curve.data(), n};
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += got.curve[i] - base[i];
    const double change = sum / static_cast<double>(n) / loss_scale(base);
    return loss_change{std::isnan(change) ? infinity : change, infinity, n};
  }
  if (got.batches <= 0 || got.batches != fp32.batches) return std::nullopt;
  const double scale = fp32.loss != 0 ? std::abs(fp32.loss) : 1, change = (got.loss - fp32.loss) / scale;
  return loss_change{std::isnan(change) ? infinity : change, infinity, static_cast<std::size_t>(got.batches)};
}

/// Returns: the run by which a plan was judged by its losses; null if there is none.
inline const trial* judged_run(const plan& p, const outcome& result) {
  const auto at = std::find_if(result.trials.begin(), result.trials.end(),
                               [&](const trial& t) { return is_judged(t) && t.plan == p; });
  return at == result.trials.end() ? nullptr : &*at;
}

/// Returns: the change of a contestant's loss; nothing for FP32, and for a plan that was never judged by itself.
inline std::optional<loss_change> change_of(const contestant& c, const outcome& result) {
  if (result.contest.empty() || c.plan == result.contest.front().plan) return std::nullopt;
  if (c.loss && c.loss_batches > 0 && c.loss->line > 0) {
    return loss_change{result.higher_is_better ? -c.loss->difference : c.loss->difference, c.loss->radius,
                       c.loss_batches};
  }
  const trial* t = judged_run(c.plan, result);
  return t == nullptr ? std::nullopt : change_of(t->sample, result.baseline);
}

/// Returns: an accepted run whose plan lowers all operators that `p` lowers, to the same precisions; null if there is
/// none. For a plan that was not judged by itself no other run says as much.
inline const trial* covering_run(const plan& p, const outcome& result) {
  if (result.contest.empty()) return nullptr;
  const plan& fp32 = result.contest.front().plan;
  const auto covers = [&](const trial& t) {
    if (!is_judged(t) || !t.accepted || t.plan.size() != p.size()) return false;
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (p[i] != fp32[i] && p[i] != t.plan[i]) return false;
    }
    return true;
  };
  const auto at = std::find_if(result.trials.begin(), result.trials.end(), covers);
  return at == result.trials.end() ? nullptr : &*at;
}

/// Returns a change as a text: "+0.22%", "-1.00%", "not finite".
inline std::string percent_text(double change) {
  if (!std::isfinite(change)) return "not finite";
  if (std::abs(change) < 0.001) return fmt::format("{:+.4f}%", std::round(1e6 * change) / 1e4 + 0.0);  // no "-0"
  return fmt::format(fmt::runtime(std::abs(change) < 10 ? "{:+.2f}%" : "{:+.3g}%"), 100 * change);
}

/// Returns "+0.22% +- 0.19% of 48 batches", without the radius if it is unknown.
inline std::string change_text(const loss_change& c) {
  std::string text = percent_text(c.difference);
  if (std::isfinite(c.difference) && std::isfinite(c.radius))
    text += c.radius > 1 ? " +- over 100%" : " +- " + percent_text(c.radius).substr(1);
  return text + fmt::format(" of {} batch{}", c.batches, c.batches == 1 ? "" : "es");
}

/// Returns the title of a table's column of losses. If scores decided, it shows how far a score is below FP32's.
inline std::string_view loss_title(const outcome& result) {
  return result.criterion == criterion::scores ? "below FP32's score" : "loss against FP32's";
}

/// Returns the runs of FP32 with perturbed roundings, which show how far one FP32 training strays from the next.
inline std::vector<const trial*> perturbed_runs(const outcome& result) {
  std::vector<const trial*> runs;
  for (const trial& t : result.trials) {
    const bool perturbed = t.purpose == purpose::perturbed;
    if (t.stage == stage::baseline && perturbed && t.sample.ok()) runs.push_back(&t);
  }
  return runs;
}

/// Judges a run by its losses alone. The answer is `go_on` if they leave open whether the plan harms the training.
inline loss_verdict evidence_of(const trial& t, const outcome& result) {
  const double worse = result.higher_is_better ? -1 : 1;
  const std::vector<double> fp32 = make_lower_better(result.baseline.curve, worse),
                            own = make_lower_better(t.sample.curve, worse);
  std::vector<std::vector<double>> spread, paths;
  for (const trial* run : perturbed_runs(result)) {
    spread.push_back(make_lower_better(run->sample.curve, worse));
    paths.push_back(loss_path(result.baseline.curve, run->sample.curve, worse));
  }
  loss_verdict got = judge({.tolerance = result.tolerance},
                           {.fp32 = fp32, .candidate = own, .spread = {spread.begin(), spread.end()}});
  if (beyond_doubt(loss_path(result.baseline.curve, t.sample.curve, worse), paths, result.tolerance))
    got.answer = loss_answer::rejected;
  return got;
}

/// Returns the change of a run's loss with its radius: the radius that the search gave the contestant or, if it gave
/// none, that of the run's losses.
inline std::optional<loss_change> change_of(const trial& t, const outcome& result) {
  auto change = change_of(t.sample, result.baseline);
  const bool curves = !result.baseline.curve.empty() && !t.sample.curve.empty();
  if (!change || !is_judged(t) || !t.sample.ok() || !curves) return change;
  const auto same = [&](const contestant& c) { return c.plan == t.plan && c.loss && c.loss_batches > 0; };
  const auto at = std::find_if(result.contest.begin(), result.contest.end(), same);
  change->radius = at != result.contest.end() ? at->loss->radius : evidence_of(t, result).radius;
  return change;
}

/// True for a run that was neither accepted nor shown to be worse than the tolerance: its mean change is within the
/// tolerance, or its losses leave open whether it is. Never true if scores decided, since a score is either high enough
/// or not.
inline bool is_undecided(const trial& t, const outcome& result) {
  if (!t.sample.ok() || t.accepted || !is_judged(t) || result.criterion == criterion::scores) return false;
  const auto change = change_of(t.sample, result.baseline);
  if (!change) return false;
  if ((result.higher_is_better ? -change->difference : change->difference) <= result.tolerance) return true;
  const bool curves = !t.sample.curve.empty() && !result.baseline.curve.empty();
  return curves && evidence_of(t, result).answer != loss_answer::rejected;
}

/// The same for a contestant, by the search's loss_verdict and, if that leaves it open, by its run.
inline bool is_undecided(const contestant& c, const outcome& result) {
  if (!is_rejected(c) || result.criterion == criterion::scores || is_shown_worse(*c.loss, result.tolerance))
    return false;
  const trial* t = judged_run(c.plan, result);
  return c.loss->difference <= result.tolerance || t == nullptr || t->accepted || is_undecided(*t, result);
}

/// Returns a table's text on a contestant's loss: "+0.22% +- 0.19% of 48 batches", followed by ", rejected" if it was
/// shown to be above the tolerance, or by ", undecided" if it was neither shown to be above nor accepted. "-" for FP32
/// and if nothing is known.
inline std::string loss_cell(const contestant& c, const outcome& result) {
  if (const auto change = change_of(c, result))
    return change_text(*change) + (!is_rejected(c) ? "" : is_undecided(c, result) ? ", undecided" : ", rejected");
  const bool fp32 = !result.contest.empty() && c.plan == result.contest.front().plan;
  return !fp32 && covering_run(c.plan, result) != nullptr ? "part of an accepted plan" : "-";
}

}  // namespace comp::detail
