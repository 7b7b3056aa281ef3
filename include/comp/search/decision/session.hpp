// SPDX-License-Identifier: Apache-2.0
// The parts of one search share the trainer's runs, the settings, the judged plans, and the outcome that each part adds
// to.
#pragma once

#include <comp/search/convergence/loss_trials.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/evaluator.hpp>

namespace comp {

struct search_session {
  evaluator& run;
  outcome& log;
  const search_settings& settings;
  loss_trials& trials;

  /// Returns: the reference that losses are judged against: FP32, or the most conservative plan if pure FP32 cannot
  /// run.
  const plan& fp32() const { return trials.reference().plan(); }
};

}  // namespace comp
