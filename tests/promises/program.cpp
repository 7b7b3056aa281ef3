// SPDX-License-Identifier: Apache-2.0
// The smallest program that searches and keeps its plan: what compile_time.py times.
#include <comp/comp.hpp>

struct trainer {
  comp::op_graph operators{{{.name = "head", .kind = "linear"}}};
  const comp::op_graph& graph() const { return operators; }
  void set_precision(const comp::plan&) {}
  comp::sample run_epoch() { return {.loss = 1, .batches = 1}; }
  comp::sample run_batch() { return {.loss = 1, .batches = 1}; }
};

int main(int, char** argv) {
  trainer mine;
  const comp::outcome found = comp::two_stage{comp::policy::pytorch{}}.run(mine, comp::progress_bar{});
  comp::save(found, std::string{argv[0]} + ".json");
  return comp::load_plan(std::string{argv[0]} + ".json", mine.graph()).plan == found.plan ? 0 : 1;
}
