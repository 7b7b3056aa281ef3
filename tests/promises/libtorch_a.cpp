// SPDX-License-Identifier: Apache-2.0
// A program of the LibTorch backend's headers alone. libtorch_b.cpp has all of them, too: what is no inline function is
// there twice, and does not link.
#include <torch/torch.h>

#include <comp_libtorch/comp_libtorch.hpp>

static_assert(COMP_HEADER_ONLY);

int main() {
  torch::nn::Linear net{4, 2};
  comp::libtorch::planned_region planned{{{"net", net}}, comp::parse_plan("11b")};
  for (int i = 0; i < 2; ++i) {
    const auto on = planned.enter();
    (void)net->forward(torch::ones({3, 4}));
  }
  return planned.planned() ? 0 : 1;
}
