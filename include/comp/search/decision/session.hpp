// SPDX-License-Identifier: Apache-2.0
// What the parts of one search share: the trainer's runs, the settings, the plans that were judged, and the outcome
// that is filled in.
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

  /// The plan that "FP32" stands for: the reference that losses are judged against.
  const plan& fp32() const { return trials.reference().plan(); }
};

}  // namespace comp
