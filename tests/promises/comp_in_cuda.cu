// SPDX-License-Identifier: Apache-2.0
// The whole of comp in a file that nvcc compiles, beside a kernel.
#include <comp/comp.hpp>
#include <range/v3/algorithm/sort.hpp>
#include <range/v3/view/transform.hpp>

__global__ void scale(float* values, float by) { values[threadIdx.x] *= by; }

comp::plan lowered(const comp::op_graph& graph) {
  comp::plan plan{graph.size()};
  for (std::size_t i = 0; i < plan.size(); ++i) plan[i] = comp::precision::bf16;
  fmt::print("{} of {}\n", plan.str(), graph.size());
  return plan;
}

int main() {
  const comp::op_graph graph{{{.name = "stem", .kind = "conv2d"}, {.name = "head", .kind = "softmax"}}};
  return lowered(graph).count_low() == 2 ? 0 : 1;
}
