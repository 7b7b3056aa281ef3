// SPDX-License-Identifier: Apache-2.0
// A stranger's program with comp's library: what it calls stands there.
#include <comp/comp.hpp>

static_assert(!COMP_HEADER_ONLY);

int main(int, char** argv) {
  const std::string file = std::string{argv[0]} + ".json";
  const comp::op_graph graph{{{.name = "stem", .kind = "conv2d"}, {.name = "head", .kind = "softmax"}}};
  comp::save(comp::parse_plan("01"), graph, {}, file);
  fmt::print("{} is a plan of a file\n", comp::load_plan(file, graph).plan.str());
}
