// SPDX-License-Identifier: Apache-2.0
// One evaluated plan: what strategies learn from, what a ledger keeps and what a report shows.
#pragma once

#include <cmath>
#include <comp/core/plan.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace comp {

/// Which part of a search a run belongs to.
enum class stage : std::uint8_t {
  baseline,  // stage 0: FP32
  epochs,    // stage 1: candidates judged by an epoch's loss and time
  batches,   // stage 2: candidates judged by the time of batches
  contest,   // the final comparison of the found plan, FP32 and the rules' plans, by the time of batches
  training   // the winner's epochs
};

constexpr std::string_view name(stage s) {
  constexpr std::string_view names[] = {"baseline", "epochs", "batches", "contest", "training"};
  return names[static_cast<std::size_t>(s)];
}

/// One run that a search made: of which plan, in which stage, and what came of it.
struct trial {
  std::size_t number = 0;                     // the search's runs are counted from 0
  comp::stage stage = comp::stage::baseline;  // in which part of the search it was run
  comp::plan plan = {};                       // which plan was run
  std::size_t repeat = 0;                     // how many runs of this plan in this stage came before it
  comp::sample sample = {};                   // what the run gave
  bool accepted = false;  // its loss is within the tolerance; where no loss is judged: it ran to its end
  double seconds = std::numeric_limits<double>::infinity();  // median time of a batch; infinity: the run did not finish
  interval bounds = {};                                      // 95% confidence interval of `seconds`
  std::string label = {};  // what the plan is called: "fp32", "pytorch bf16"; empty: a candidate
};

/// True when `a` is usable and its interval lies wholly below `b`'s; where intervals are not known the medians decide.
inline bool clearly_faster(const trial& a, const trial& b) {
  if (!a.accepted) return false;
  if (!b.accepted) return true;
  if (!std::isfinite(a.bounds.high) || !std::isfinite(b.bounds.low)) return a.seconds < b.seconds;
  return a.bounds.high < b.bounds.low;
}

}  // namespace comp
