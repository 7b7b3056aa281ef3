// SPDX-License-Identifier: Apache-2.0
// Judges a candidate's whole epoch against FP32's, by its mean loss or by its score.
// Not here: the paper's rule itself (acceptance.hpp), and judging by batches (loss_test.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/convergence/acceptance.hpp>
#include <comp/search/convergence/loss_test.hpp>
#include <comp/search/convergence/reference_run.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>

namespace comp {

namespace detail {

/// Judges by the score. If it is below FP32's by more than the tolerance, FP32 runs twice more with perturbed
/// roundings, and the plan may lose as much more as these runs differ from FP32.
inline loss_verdict judge_score(evaluator& run, reference_run& reference, double tolerance, const sample& candidate) {
  loss_verdict verdict{.line = tolerance};
  if (candidate.ok()) {
    const sample& fp32 = reference.so_far();
    verdict.difference = score_lost(fp32, candidate);
    if (!(verdict.difference <= verdict.line) && run.restores()) {
      const checkpoint here = run.save();
      for (const sample& s : reference.run_spread(2, static_cast<std::size_t>(fp32.batches))) {
        const double moved = std::abs(score_lost(fp32, s));
        if (std::isfinite(moved)) verdict.line = std::max(verdict.line, tolerance + moved);
      }
      run.restore(here);
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
  const bool as_good = accepted(reference.so_far(), candidate, settings.tolerance, higher);
  return {.answer = as_good ? loss_answer::accepted : loss_answer::rejected,
          .difference = (higher ? -1 : 1) * (candidate.loss - fp32) / (fp32 == 0 ? 1 : std::abs(fp32)),
          .line = settings.tolerance};
}

}  // namespace comp
