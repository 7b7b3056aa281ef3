// SPDX-License-Identifier: Apache-2.0
// A stranger's program that uses the CUDA backend: built against an installed comp by pkg-config, run with or without a
// GPU.
#include <comp_cuda/capability.hpp>
#include <comp_cuda/kernels.hpp>

int main() {
  try {
    const comp::cuda::capability card = comp::cuda::probe();
    for (const std::string& warning : card.warnings()) fmt::print("{}\n", warning);
    comp::cuda::transpose<float>(nullptr, nullptr, nullptr, 0, 0, 0);
  } catch (const comp::error& e) {
    fmt::print("{}\n", e.what());
  }
}
