// SPDX-License-Identifier: Apache-2.0
// A rival is a plan that the search did not find and that the found plan has to beat in the contest, besides FP32 and
// the policy's rule-based plans. Use: settings.rivals = comp::system_rules(); (systems/system_rules.hpp), or a function
// of one's own. Cost: one batch of each distinct plan per round of the contest, so at most race.contest_rounds batches
// each; a plan that is hopelessly slower than FP32 leaves after two. A rival that is fastest has to have its losses
// accepted before it wins.
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
  std::string label = {};  // its name in tables: "rule-based tensorflow bf16"
  comp::plan plan = {};
  bool rule_based = false;   // true: a system's rules give this plan without a search
  std::string refusal = {};  // why it has no plan; then it takes no part, and the outcome's warnings say so
};

/// Makes the rivals for a model's operators and the low precisions that are searched.
using rival_source = std::function<std::vector<rival>(const op_graph&, std::span<const precision>)>;

}  // namespace comp
