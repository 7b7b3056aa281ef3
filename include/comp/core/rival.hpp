// SPDX-License-Identifier: Apache-2.0
// Plans of the user's, beside FP32 and the policy's own, that the found plan has to beat in the final head-to-head.
// Use: settings.rivals = comp::system_rules(); (systems/system_rules.hpp), or a function of one's own.
// Cost: a batch of each distinct plan in a round, so at most race.contest_rounds batches each; a plan that is
// hopelessly slower than FP32 leaves after two. A rival that is fastest trains one epoch, to be accepted, before it
// wins.
#pragma once

#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace comp {

struct rival {
  std::string label = {};  // "rule-based tensorflow bf16"
  comp::plan plan = {};
  bool rule_based = false;  // what a system's rules give without a search
};

/// Makes rivals of a model's operators and of the low precisions that are searched.
using rival_source = std::function<std::vector<rival>(const op_graph&, std::span<const precision>)>;

}  // namespace comp
