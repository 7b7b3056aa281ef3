// SPDX-License-Identifier: Apache-2.0
// Plans over time: a training may change its plan, for instance to raise the precision of its last part, or to lower it
// after a fragile start.
#pragma once

#include <comp/core/error.hpp>
#include <comp/core/fields.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace comp {

/// A plan that a training changes to.
struct later_plan {
  std::size_t batch = 1;    // the first batch that it trains; the training's first one is 0
  comp::plan plan = {};     // which plan it is
  std::string reason = {};  // why, as a sentence; may be empty
  friend bool operator==(const later_plan&, const later_plan&) = default;
};

void fields(auto& io, later_plan& p) {
  io("batch", p.batch, 1);
  io("plan", p.plan);
  io("reason", p.reason, if_any);
}

/// Returns the plan of a training's batch. `first`: the one that it begins with. Requires: later plans in order.
inline const plan& plan_at(std::size_t batch, const plan& first, const std::vector<later_plan>& later) {
  const plan* now = &first;
  for (const later_plan& next : later) {
    if (next.batch <= batch) now = &next.plan;
  }
  return *now;
}

/// Checks the plans that a training changes to.
/// Throws: `plan_error` if one does not begin after the plan before it, or does not fit `graph`.
inline void require_in_order(const std::vector<later_plan>& later, const op_graph& graph) {
  std::size_t before = 0;
  for (const later_plan& next : later) {
    require<plan_error>(next.batch > before,
                        "a later plan begins at batch {}, the one before it at batch {} (the first plan begins at 0, "
                        "and each one after that before it): put them in order",
                        next.batch, before);
    require_fits(next.plan, graph);
    before = next.batch;
  }
}

}  // namespace comp
