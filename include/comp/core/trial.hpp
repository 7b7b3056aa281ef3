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

enum class stage : std::uint8_t {
  baseline,  // stage 0: FP32
  epochs,    // stage 1: candidates judged by an epoch's loss and time
  batches,   // stage 2: candidates judged by the time of batches
  contest,   // the head-to-head of the winner, FP32 and the rule-based plans, by batches
  training   // the winner's epochs
};

constexpr std::string_view name(stage s) {
  constexpr std::string_view names[] = {"baseline", "epochs", "batches", "contest", "training"};
  return names[static_cast<std::size_t>(s)];
}

struct trial {
  std::size_t number = 0;  // counts the runs of a search from 0
  comp::stage stage = comp::stage::baseline;
  comp::plan plan = {};
  std::size_t repeat = 0;  // how often this plan was run before in this stage
  comp::sample sample = {};
  bool accepted = false;                                     // its loss is within the tolerance; stage 2: it ran
  double seconds = std::numeric_limits<double>::infinity();  // per batch, median; infinity where it did not finish
  interval bounds = {};                                      // 95%, of `seconds`
  std::string label = {};                                    // "fp32", "pytorch bf16", ""
};

/// True when `a` is usable and its interval lies wholly below `b`'s; where intervals are not known the medians decide.
inline bool clearly_faster(const trial& a, const trial& b) {
  if (!a.accepted) return false;
  if (!b.accepted) return true;
  if (!std::isfinite(a.bounds.high) || !std::isfinite(b.bounds.low)) return a.seconds < b.seconds;
  return a.bounds.high < b.bounds.low;
}

}  // namespace comp
