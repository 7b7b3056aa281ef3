// SPDX-License-Identifier: Apache-2.0
// Forwards in a region of a program or of a planned region.
#pragma once

#include <comp_libtorch/plan/program.hpp>

namespace libtorch_tests {

/// What `forward` gives in a region of `of`.
auto inside(auto& of, auto&& forward) {
  const auto on = of.enter();
  return forward();
}
/// What `forward` gives in an evaluation of `of`.
auto evaluated_in(auto& of, auto&& forward) {
  const auto on = of.evaluate();
  return forward();
}
/// Records `forward`. Returns: its graph.
const comp::op_graph& recorded(comp::libtorch::program& p, auto&& forward) {
  p.record(true);
  inside(p, forward);
  p.record(false);
  return p.graph();
}

}  // namespace libtorch_tests
