// SPDX-License-Identifier: Apache-2.0
// A stranger's program: built against an installed comp by pkg-config, and as a Meson project with comp as its
// subproject. It takes one header, which compiles in a quarter of the time of all.
#include <comp/files/plan_file.hpp>

int main() {
  const comp::op_graph graph{{{.name = "stem", .kind = "conv2d"}, {.name = "head", .kind = "softmax"}}};
  const comp::plan plan = comp::parse_plan("01");
  comp::require_fits(plan, graph);
  fmt::print("{} is a plan for {} operators\n", plan.str(), graph.size());
}
