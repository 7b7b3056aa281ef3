// SPDX-License-Identifier: Apache-2.0
// Whether a candidate's whole epoch is as good as FP32's, by its mean loss or by its score.
// Not here: the paper's rule itself (acceptance.hpp), batches (loss_test.hpp).
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

/// Before a lower score is held against a plan, FP32 with perturbed roundings shows how far roundings alone move a
/// score.
inline loss_verdict judge_score(evaluator& run, reference_run& reference, double tolerance, const sample& got) {
  loss_verdict verdict{.line = tolerance};
  if (got.ok()) {
    const sample& fp32 = reference.seen();
    verdict.difference = score_lost(fp32, got);
    if (!(verdict.difference <= verdict.line) && run.restores()) {
      const evaluator::place here = run.save();
      for (const sample& s : reference.spread(2, static_cast<std::size_t>(fp32.batches))) {
        const double moved = std::abs(score_lost(fp32, s));
        if (std::isfinite(moved)) verdict.line = std::max(verdict.line, tolerance + moved);
      }
      run.restore(here);
    }
  }
  const bool as_good = got.ok() && verdict.difference <= verdict.line;
  verdict.answer = as_good ? loss_answer::accepted : loss_answer::rejected;
  return verdict;
}

}  // namespace detail

/// Returns: whether the epoch `got`, which began where FP32's did, is as good. The state stays.
inline loss_verdict judge_epoch(evaluator& run, reference_run& reference, const search_settings& settings,
                                const sample& got) {
  if (settings.criterion == criterion::scores) return detail::judge_score(run, reference, settings.tolerance, got);
  const bool higher = settings.direction == loss_direction::higher_is_better;
  const double fp32 = reference.seen().loss;
  const bool as_good = accepted(reference.seen(), got, settings.tolerance, higher);
  return {.answer = as_good ? loss_answer::accepted : loss_answer::rejected,
          .difference = (higher ? -1 : 1) * (got.loss - fp32) / (fp32 == 0 ? 1 : std::abs(fp32)),
          .line = settings.tolerance};
}

}  // namespace comp
