// SPDX-License-Identifier: Apache-2.0
// What a stranger links with comp::libtorch alone: LibTorch, with the system's fmt beside it.
#include <ATen/ops/ones.h>

#include <comp/core/plan.hpp>
#include <comp_libtorch/support/tensors.hpp>

int main() { fmt::print("{} in {}\n", at::ones({2, 3}).sum().item<double>(), comp::parse_plan("b").str()); }
