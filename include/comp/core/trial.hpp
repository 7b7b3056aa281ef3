// SPDX-License-Identifier: Apache-2.0
// One evaluated plan: what strategies learn from, what a ledger keeps and what a report shows.
#pragma once

#include <comp/core/plan.hpp>
#include <comp/core/sample.hpp>
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
  std::string label = {};                                    // "fp32", "pytorch bf16", ""
};

}  // namespace comp
