// SPDX-License-Identifier: Apache-2.0
// Why each operator has its precision, one sentence per operator, for reports.
#pragma once

#include <comp/policy/tensor_core.hpp>
#include <comp/search/candidate_space.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/segments.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace comp {

namespace detail {

inline std::string reason_of(const op_info& op, const decision& said, op_role role, segment_kind segment,
                             precision chosen, precision low, const hardware& machine) {
  const bool is_fp32 = chosen == precision::fp32;
  switch (role) {
    case op_role::view:
      return "moves no data of its own: has its producer's precision";
    case op_role::pinned:
      return said.fixed ? fmt::format("the policy fixes it at {}", name(chosen))
                        : "no low precision was to be searched";
    case op_role::lowered:
      return is_fp32 ? "on the allow list, and its sizes suit the hardware: lowering it did not pay or did not converge"
                     : fmt::format("on the allow list, and its sizes suit the hardware: {}", name(chosen));
    case op_role::searched:
      if (said.category == category::deny) {
        return is_fp32 ? "on the deny list: lowering it by epochs was not accepted or not faster"
                       : fmt::format("on the deny list, but an epoch in {} kept the loss and was faster", name(chosen));
      }
      return is_fp32 ? fmt::format("on the allow list, but {}: FP32 was as fast", policy::why_not(op, low, machine))
                     : fmt::format("on the allow list; an epoch in {} kept the loss and was fastest", name(chosen));
    case op_role::undecided:
      break;
  }
  if (segment == segment_kind::alone) return "no list names it and no decided operator is near: FP32";
  if (segment == segment_kind::follows)
    return fmt::format("the decided operators around it agree: follows them in {}", name(chosen));
  return fmt::format("the decided operators around it differ: batches were fastest with {}", name(chosen));
}

}  // namespace detail

/// Returns: one reason per operator for `found.plan`. `searched` is false when FP32 or a rule-based plan won the
/// contest; `stage_two` is stage 2's plan where another one of the search won, else empty.
inline std::vector<op_reason> explain(const outcome& found, const candidate_space& candidates,
                                      const std::vector<segment_kind>& segments, const std::string& winner,
                                      bool searched, const plan& stage_two = {}) {
  std::vector<op_reason> reasons;
  reasons.reserve(found.graph.size());
  const precision low = found.precisions.size() > 1 ? found.precisions[1] : precision::fp32;
  for (std::size_t i = 0; i < found.graph.size(); ++i) {
    op_reason& reason = reasons.emplace_back();
    reason.category = candidates.decisions[i].category;
    reason.decided_by_epochs = decided_by_epochs(candidates.roles[i]);
    if (!stage_two.empty() && stage_two[i] != found.plan[i]) {
      reason.text =
          fmt::format("batches were not clearly faster with it in {}: {}", name(stage_two[i]), name(found.plan[i]));
      continue;
    }
    reason.text = searched || candidates.roles[i] == op_role::view
                      ? detail::reason_of(found.graph[i], candidates.decisions[i], candidates.roles[i], segments[i],
                                          found.plan[i], low, found.hardware)
                      : fmt::format("the whole plan \"{}\" won the head-to-head: {}", winner, name(found.plan[i]));
  }
  return reasons;
}

}  // namespace comp
