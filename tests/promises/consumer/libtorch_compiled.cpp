// SPDX-License-Identifier: Apache-2.0
// A stranger's program with the LibTorch backend's library: what it calls stands there.
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>

#include <comp_libtorch/plan/program.hpp>

static_assert(!COMP_HEADER_ONLY);

int main() {
  comp::libtorch::program program;
  program.record(true);
  {
    const auto on = program.enter();
    (void)at::relu(at::ones({2, 3}));
  }
  program.record(false);
  fmt::print("{} in {}\n", program.graph().begin()->name, program.current_plan().str());
}
