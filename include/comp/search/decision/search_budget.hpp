// SPDX-License-Identifier: Apache-2.0
// Says what a search may cost, in batches of the training that it is for: a short training cannot earn back a long
// search. Not here: what the questions of a guided search have cost so far (question_budget.hpp).
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
  /// `batches_per_epoch`: 0 if it is not known; nothing is limited then. `guided`: false for strategies of the user's,
  /// whose cost the user chose.
  search_budget(const search_settings& settings, std::size_t batches_per_epoch, bool guided)
      : settings_{settings}, per_epoch_{batches_per_epoch}, guided_{guided} {}

  /// Returns: the batches that the search may cost; 1000 if nothing is limited.
  std::size_t batches() const {
    if (per_epoch_ == 0 || !guided_) return 1000;
    return static_cast<std::size_t>(std::min(settings_.budget * static_cast<double>(planned()), 1e6));
  }
  /// Returns: true if the budget has no room for runs that only confirm what is known.
  bool is_tight() const { return batches() < 60; }
  /// Returns: the batches of the training; 0 if its length is not known.
  std::size_t planned() const { return settings_.planned_epochs * per_epoch_; }
  /// Returns: true if a search would cost more than it saves. One plan is then judged, or none.
  bool is_too_short() const { return guided_ && planned() > 0 && planned() <= 300; }
  bool is_too_short_for_one() const { return is_too_short() && planned() < 60; }

  /// Returns: settings under which the contest takes at most about a twentieth of the training. With a tight budget
  /// FP32 does not run again if enough of its batches were already timed. `known`: how many were.
  race_settings contest(std::size_t known) const {
    race_settings chosen = settings_.race;
    if (per_epoch_ > 0) chosen.contest_rounds = std::clamp(planned() / 40, chosen.min_rounds, chosen.contest_rounds);
    if (is_tight()) chosen.fp32_rounds = known > chosen.min_rounds ? 0 : chosen.min_rounds;
    return chosen;
  }

  /// Returns: how many plans a contest of compiled steps may compile, so that it takes at most about a twentieth of the
  /// training, and three at least: FP32, a rule-based plan and the found one. `each`: the seconds that compiling a plan
  /// takes; `batch`: the seconds of FP32's batch.
  std::size_t plans_to_compile(double each, double batch) const {
    constexpr std::size_t least = 3, most = 100;
    if (planned() == 0 || !(each > 0)) return most;
    const double affordable = static_cast<double>(planned()) * batch / 20 / each;
    return static_cast<std::size_t>(std::clamp(affordable, double{least}, double{most}));
  }

  /// Returns: true if `c` needs more memory than is allowed.
  bool too_large(const contestant& c) const {
    return settings_.memory_limit > 0 && c.peak_bytes > settings_.memory_limit;
  }

  /// Returns: a sentence for each limit that the outcome exceeds: the planned batches, the allowed memory.
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
