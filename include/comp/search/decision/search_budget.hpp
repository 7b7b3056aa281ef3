// SPDX-License-Identifier: Apache-2.0
// What a search may cost, in batches of the training that it is for.
#pragma once

#include <algorithm>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace comp {

class search_budget {
 public:
  /// `batches_per_epoch`: 0 where it is not known. `guided`: strategies of a user's cost what they cost.
  search_budget(const search_settings& settings, std::size_t batches_per_epoch, bool guided)
      : settings_{settings}, per_epoch_{batches_per_epoch}, guided_{guided} {}

  /// Many where it is not known how long the training is.
  std::size_t batches() const {
    if (per_epoch_ == 0 || !guided_) return 1000;
    return static_cast<std::size_t>(std::min(settings_.budget * static_cast<double>(planned()), 1e6));
  }
  /// Too little may be spent for what only makes sure.
  bool is_tight() const { return batches() < 60; }
  /// Batches of the training; 0 where it is not known how long it is.
  std::size_t planned() const { return settings_.planned_epochs * per_epoch_; }
  /// A search would cost more than it saves: one plan is looked at, or none.
  bool is_too_short() const { return guided_ && planned() > 0 && planned() <= 300; }
  bool is_too_short_for_one() const { return is_too_short() && planned() < 60; }

  /// No more of the training than a twentieth; FP32 need not run again in a short one where pairs with it are known.
  /// `known`: batches that were timed beside FP32's.
  race_settings contest(std::size_t known) const {
    race_settings chosen = settings_.race;
    if (per_epoch_ > 0) chosen.contest_rounds = std::clamp(planned() / 40, chosen.min_rounds, chosen.contest_rounds);
    if (is_tight()) chosen.fp32_rounds = known > chosen.min_rounds ? 0 : chosen.min_rounds;
    return chosen;
  }

  /// Whether it needs more memory than is allowed.
  bool too_large(const contestant& c) const {
    return settings_.memory_limit > 0 && c.peak_bytes > settings_.memory_limit;
  }

  /// What of the outcome goes beyond what was planned, or is allowed.
  std::vector<std::string> remarks(const outcome& result, const contestant& winner) const {
    std::vector<std::string> all;
    if (planned() > 0 && result.trained_batches > planned()) {
      all.push_back(
          fmt::format("the search trained {} batches (the training was planned to have {}: too few to search in): "
                      "load the plan and train anew, or plan more epochs",
                      result.trained_batches, planned()));
    }
    if (too_large(winner)) {
      all.push_back(
          fmt::format("memory limit of {} bytes (the plan that won needs {}, and none that is accepted fits): "
                      "raise it, or make the batch smaller",
                      settings_.memory_limit, winner.peak_bytes));
    }
    return all;
  }

 private:
  const search_settings& settings_;
  std::size_t per_epoch_;
  bool guided_;
};

}  // namespace comp
