// SPDX-License-Identifier: Apache-2.0
// Finds what makes the result of a search doubtful, in what the search saw anyway, and says it in a sentence each. Not
// here: what is checked before it starts (trainer_check.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/trainer_faults.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace comp::detail {

/// Returns: a sentence for each precision in which no plan changed a loss or a time.
inline std::vector<std::string> problems_of_ignored_precisions(const outcome& seen) {
  std::map<precision, bool> changed_nothing;
  for (const trial& t : seen.trials) {
    const auto low = std::find_if(t.plan.begin(), t.plan.end(), is_low);
    if (t.stage != stage::losses || low == t.plan.end() || !t.sample.ok() || t.sample.curve.size() < 2) continue;
    const bool one_low_precision = std::all_of(low, t.plan.end(), [&](precision p) { return !is_low(p) || p == *low; });
    if (!one_low_precision || t.purpose != purpose::judge) continue;
    const auto at = changed_nothing.try_emplace(*low, true).first;
    at->second = at->second && changes_nothing(seen.baseline, t.sample);
  }
  std::vector<std::string> sentences;
  for (const auto& [low, nothing] : changed_nothing) {
    if (nothing) sentences.push_back(sentence_of_ignored(low));
  }
  return sentences;
}

/// Reports recorded runs that might be of another training. `first_losses`: the losses at this training's start are
/// known, and tell it apart.
inline problem problem_of_ledger(const any_trainer& trainer, const outcome& seen, bool first_losses) {
  if (trainer.has.signature || seen.recalled == 0 || first_losses) return {};
  return fmt::format(
      "{} of {} runs came from a ledger, and only model, type and machine say that they are of this training (its trainer "
      "has no signature(), and no first losses to go by): give it std::string signature() const, with data, batch size, "
      "optimizer and seed",
      seen.recalled, seen.trials.size());
}

/// Reports batches whose loss was not finite. `fp32`: the plan that losses are judged against.
inline problem problem_of_lost_batches(const outcome& seen, const plan& fp32) {
  std::int64_t lost = 0, batches = 0;
  for (const trial& t : seen.trials) {
    if (t.plan == fp32 || !trains(t.purpose)) continue;
    lost += t.sample.not_finite, batches += t.sample.batches;
  }
  if (lost + seen.baseline.not_finite == 0) return {};
  return fmt::format(
      "losses were not finite in {} of {} batches under FP32 and {} of {} under other plans (these were left out, and "
      "plans that lose more than FP32 are refused): look at the data of such a batch",
      seen.baseline.not_finite, seen.baseline.batches, lost, batches);
}

/// Returns: a sentence for each exception that ended a run.
inline std::vector<std::string> problems_of_failed_runs(const outcome& seen) {
  struct failure {
    std::size_t runs = 0;
    const trial* first = nullptr;
  };
  std::map<std::string, failure> failures;
  for (const trial& t : seen.trials) {
    if (t.sample.status != status::failed || !trains(t.purpose)) continue;
    failure& failed = failures[t.sample.message];
    if (failed.runs++ == 0) failed.first = &t;
  }
  std::vector<std::string> sentences;
  for (const auto& [message, failed] : failures) {
    sentences.push_back(fmt::format(
        "{} of {} runs failed with \"{}\", first run {}{}{} (a plan that fails is not taken): look at what the trainer does "
        "there",
        failed.runs, seen.trials.size(), message, failed.first->number, failed.first->label.empty() ? "" : ", ",
        failed.first->label));
  }
  return sentences;
}

/// Reports losses that do not show that the model learns. Under such losses every plan looks as good as FP32.
inline problem problem_of_learning(const outcome& seen) {
  const std::vector<double>& curve =
      seen.trained.curve.size() > seen.baseline.curve.size() ? seen.trained.curve : seen.baseline.curve;
  const std::vector<double> losses = finite_of(curve);
  if (losses.size() < 4) return {};
  const auto [least, most] = std::minmax_element(losses.begin(), losses.end());
  if (*most - *least <= 1e-12 * std::abs(*most)) {
    return fmt::format(
        "the loss is {:.6g} in each of {} batches (nothing is shown of plans whose losses cannot differ): look whether the "
        "weights are trained, and what sample.loss is set to",
        *most, losses.size());
  }
  constexpr std::size_t enough_batches = 30;
  if (losses.size() < enough_batches) return {};
  const std::size_t third = losses.size() / 3;
  const std::span<const double> all{losses};
  const double first = mean_of(all.first(third)), last = mean_of(all.last(third));
  double squared_deviations = 0;
  for (std::size_t i = 0; i < third; ++i) {
    squared_deviations += (losses[i] - first) * (losses[i] - first);
    squared_deviations += (losses[losses.size() - 1 - i] - last) * (losses[losses.size() - 1 - i] - last);
  }
  const double standard_error = std::sqrt(squared_deviations / static_cast<double>(third * (third - 1)));
  if (seen.baseline.losses.size() > 1) return {};  // those of a GAN may rise, while its parts take turns in winning
  const double improvement = (seen.higher_is_better ? last - first : first - last) / standard_error;
  if (improvement < -6) {
    return fmt::format(
        "the loss gets worse: from {:.4g} to {:.4g} in {} batches (settings.direction says that a {} one is better): set "
        "settings.direction, or look at the learning rate",
        first, last, losses.size(), seen.higher_is_better ? "higher" : "lower");
  }
  // A training is suspected only if an improvement by 3e-5 of the loss per batch would stand out from the noise.
  const double largest_error = 3e-5 * static_cast<double>(losses.size());
  if (improvement < 1 && standard_error < largest_error * std::max(std::abs(first), std::abs(last))) {
    return fmt::format(
        "the loss did not get better in {} batches: from {:.4g} to {:.4g} (where nothing is learned no plan can be seen to "
        "keep it): look whether the weights are trained, or search where they are",
        losses.size(), first, last);
  }
  return {};
}

inline problem problem_of_memory(const outcome& seen) {
  if (seen.memory_limit == 0 || seen.baseline.peak_bytes > 0) return {};
  return fmt::format(
      "the memory limit of {} bytes is not kept (the trainer does not say what a batch needs): set sample.peak_bytes",
      seen.memory_limit);
}

}  // namespace comp::detail
