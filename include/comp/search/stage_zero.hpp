// SPDX-License-Identifier: Apache-2.0
// Stage 0: the FP32 epoch that all plans are judged against.
// A backend that times no batches, or too few, is run once more, to know how far loss and time differ by themselves.
// Source: CoMP paper, section 3.2 ("the first (basis) sampling").
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/evaluator.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>

namespace comp {

/// An epoch's trial with the trainer's state at its end, where that is known.
template <class State>
struct finished_epoch {
  trial result = {};
  std::optional<State> end = {};  // empty after a recalled trial, or where the backend cannot save
};

template <class Evaluator>
class stage_zero {
 public:
  using epoch_type = finished_epoch<typename Evaluator::state>;

  stage_zero(Evaluator& run, outcome& log, const search_settings& settings)
      : run_{run}, log_{log}, settings_{settings} {}

  /// Sets the outcome's baseline, and its tolerance where FP32 itself needs a wider one.
  /// Throws: `error` when FP32 does not train.
  epoch_type operator()() {
    epoch_type fp32;
    fp32.result = epoch();
    const sample& got = fp32.result.sample;
    require<error>(
        got.ok(),
        "FP32 training ended as {} after {} batches{}{} (plans are judged against an FP32 epoch that trains): "
        "check the data, the learning rate and the backend",
        name(got.status), got.batches, got.message.empty() ? "" : ": ", got.message);
    log_.baseline = got;
    if (Evaluator::restores && !run_.recalled()) fp32.end = run_.save();
    if (!Evaluator::restores) {
      log_.warnings.push_back(
          "the backend cannot save and restore its state: each candidate starts from the weights that the last one left");
    }
    if (got.batch_seconds.size() < settings_.race.min_rounds) measure_noise(fp32.result);
    return fp32;
  }

 private:
  trial epoch() {
    return run_.epoch(stage::baseline, plan{log_.graph.size()}, "fp32", [](const sample& so_far) {
      return std::isfinite(so_far.loss) ? status::ok : status::not_finite;
    });
  }

  void measure_noise(trial& first) {
    const trial again = epoch();
    if (!again.sample.ok()) return;
    if (Evaluator::restores) widen_tolerance(first.sample.loss, again.sample.loss);
    const auto [quick, slow] = std::minmax(first.seconds, again.seconds);
    first.bounds = {quick, slow};
    first.seconds = (quick + slow) / 2;
  }

  void widen_tolerance(double loss, double again) {
    const double difference = std::abs(again - loss) / std::max(std::abs(loss), std::numeric_limits<double>::min());
    if (difference <= settings_.tolerance / 2) return;
    log_.tolerance = std::max(settings_.tolerance, 2 * difference);
    log_.warnings.push_back(fmt::format(
        "two FP32 epochs from the same state differ by {:.2g} of the loss: the tolerance was widened to {:.2g}",
        difference, log_.tolerance));
  }

  Evaluator& run_;
  outcome& log_;
  const search_settings& settings_;
};

}  // namespace comp
